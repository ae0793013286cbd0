"""The trace's JSON-lines files: requests, sampling rules, dropped rows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kvtrace.errors import IntegrityError
from kvtrace.trace.format import (
    DROPPED_FILE,
    REQUESTS_FILE,
    SAMPLING_FILE,
    DroppedRecord,
    RecordT,
    RequestRecord,
    SamplingRecord,
    unseal,
)

if TYPE_CHECKING:
    from pathlib import Path


def read_requests(trace: Path) -> dict[int, RequestRecord]:
    """Return the last record of every request, by its number.

    Raises IntegrityError: the file is missing, or a line other than a cut last one is damaged.
    """
    return {record.request: record for record in _read_lines(trace / REQUESTS_FILE, RequestRecord)}


def read_sampling(trace: Path) -> dict[int, SamplingRecord]:
    """Return the sampling rules by their id. Raises IntegrityError as `read_requests` does."""
    return {record.sampling_id: record for record in _read_lines(trace / SAMPLING_FILE, SamplingRecord)}


def read_dropped(store: Path) -> dict[int, dict[str, int]]:
    """Return, per request, the rows this rank lost by reason. Raises IntegrityError likewise."""
    dropped: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for record in _read_lines(store / DROPPED_FILE, DroppedRecord):
        dropped[record.request][record.reason] += record.num_rows
    return {request: dict(reasons) for request, reasons in dropped.items()}


def _read_lines(path: Path, kind: type[RecordT]) -> list[RecordT]:
    """Parse sealed lines. A last line without its newline was cut by the writer's death: it is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read ({error.strerror}); a trace has one. Copy the trace again from its host"
        ) from error
    *lines, _cut = content.split(b"\n")
    records: list[RecordT] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(unseal(line, kind))
        except ValueError as error:
            raise IntegrityError(
                f"{path}: line {number} is damaged ({_first_line(error)}). Copy the trace again from its host"
            ) from error
    return records


def read_sealed(path: Path, kind: type[RecordT]) -> RecordT:
    """Return the record of a sealed JSON file. Raises IntegrityError: missing, cut or damaged."""
    try:
        return unseal(path.read_bytes(), kind)
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read ({error.strerror}); a trace has one. Copy the trace again from its host"
        ) from error
    except ValueError as error:
        raise IntegrityError(
            f"{path}: is damaged ({_first_line(error)}). Copy the trace again from its host"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
