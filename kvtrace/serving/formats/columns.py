"""Results whose requests are parallel lists, one object a run: vLLM's and SGLang's benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.files.regular import read_regular
from kvtrace.outcomes.fields import shown
from kvtrace.outcomes.strict_files import DOCUMENT_BYTES, located, parse_object
from kvtrace.serving.times import microseconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.serving.record import Load


def result_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) of a file with a JSON object a line; one object may take several lines.

    Raises OutcomesError: the file cannot be read, is too large, or a line is no object.
    """
    with located(path):
        content = read_regular(path, DOCUMENT_BYTES)
        lines = [line for line in content.split(b"\n") if line.strip()]
        if not lines:
            raise ValueError("is empty")
        if len(lines) > 1 and not all(line.lstrip().startswith(b"{") for line in lines):
            lines = [content]
    for number, line in enumerate(lines, 1):
        place = f"result {number}"
        with located(path, place):
            found = parse_object(line, constants=True)
        yield place, found


def columns(record: dict[str, Any], names: tuple[str, ...]) -> int:
    """Return how many requests these lists have. Raises ValueError: one is none, or lengths differ."""
    lengths = set()
    for name in names:
        if not isinstance(record.get(name), list):
            raise ValueError(f"{name} is expected to be a list")
        lengths.add(len(record[name]))
    if len(lengths) != 1:
        raise ValueError(f"its lists have {', '.join(f'{one:,}' for one in sorted(lengths))} requests")
    return lengths.pop()


def rate_and_load(record: dict[str, Any]) -> tuple[float | None, Load]:
    """Return requests a second and how load was offered, of `request_rate` and `max_concurrency`."""
    rate = record.get("request_rate")
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e9:
        return float(rate), "open"
    if rate == "trace":
        return None, "open"
    if rate != "inf" and rate != float("inf"):
        raise ValueError(f"request_rate is {shown(rate)}, expected requests a second")
    return None, ("burst" if record.get("max_concurrency") is None else "closed")


def chunk_gaps(value: Any, name: str) -> list[int]:
    """Return gaps between chunks, in microseconds. Raises ValueError: it is no list of seconds."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is expected to hold lists of seconds")
    return [microseconds(one, name) for one in value]
