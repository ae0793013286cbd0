"""AIPerf: `profile_export.jsonl`, and the grades of `accuracy_export.jsonl` beside it.

Source: aiperf 0.13.0, common/models/record_models.py (MetricRecordMetadata, epoch nanoseconds). The file does
not say how load was offered. Records that agentic replay withholds are not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import flag, shown, table, text, text_or_none, whole_or_none
from kvtrace.outcomes.strict_files import json_lines, located
from kvtrace.serving.record import LoadRun, Phase, Served, Status
from kvtrace.serving.times import milliseconds, nanoseconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ACCURACY_FILE: Final = "accuracy_export.jsonl"
_PHASES: Final[dict[str, Phase]] = {"profiling": "measured", "warmup": "engine warm-up"}
_REFUSALS: Final = (429, 503)


def is_aiperf(first: dict[str, Any]) -> bool:
    """Return whether a file's first line is one of the profile export."""
    metadata = first.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata


def read_aiperf(path: Path) -> Iterator[LoadRun | Served]:
    """Yield the run and its requests; arrivals are those at which the rate limiter issued a credit.

    Raises OutcomesError: a line is something else, or a grade belongs to no request.
    """
    yield LoadRun(path.parent.name or path.stem, "aiperf", planned_source="issued")
    graded = _graded(path.with_name(_ACCURACY_FILE))
    for number, record in json_lines(path):
        with located(path, f"line {number}"):
            served = _served(record, graded)
        yield served
    with located(path):
        if graded:
            raise ValueError(f"{_ACCURACY_FILE} beside it grades {len(graded):,} requests that it has not")


def _graded(path: Path) -> dict[str, bool]:
    graded: dict[str, bool] = {}
    if not path.exists():
        return graded
    for number, record in json_lines(path):
        with located(path, f"line {number}"):
            request = text(record, "x_request_id")
            if request in graded:
                raise ValueError("its x_request_id is in the file twice")
            graded[request] = flag(record, "passed")
    return graded


def _served(record: dict[str, Any], graded: dict[str, bool]) -> Served:
    metadata, metrics = table(record, "metadata"), table(record, "metrics")
    phase = _PHASES.get(text(metadata, "benchmark_phase"))
    if phase is None:
        raise ValueError(f"benchmark_phase is {shown(metadata['benchmark_phase'])}, expected profiling")
    started = nanoseconds(metadata, "request_start_ns")
    if started is None:
        raise ValueError("request_start_ns is None, expected nanoseconds")
    until_first = _metric(metrics, "time_to_first_token", "ms")
    request = text(metadata, "x_request_id")
    return Served(
        id=request,
        status=_status(record, metadata),
        phase=phase,
        planned_us=nanoseconds(metadata, "credit_issued_ns"),
        dispatched_us=started,
        first_us=None if until_first is None else started + until_first,
        done_us=nanoseconds(metadata, "request_end_ns"),
        prompt_tokens=_metric(metrics, "input_sequence_length", "tokens"),
        output_tokens=_metric(metrics, "output_sequence_length", "tokens"),
        accepted=graded.pop(request, None),
    )


def _status(record: dict[str, Any], metadata: dict[str, Any]) -> Status:
    error = table(record, "error")
    if error:
        kind = text_or_none(error, "type", most=1000) or ""
        refused = whole_or_none(error, "code") in _REFUSALS or "ConnectionRefused" in kind
        return "rejected" if refused else "failed"
    return "cancelled" if metadata.get("was_cancelled") is True else "completed"


def _metric(metrics: dict[str, Any], name: str, unit: str) -> int | None:
    found = table(metrics, name)
    if not found:
        return None
    if found.get("unit") != unit:
        raise ValueError(f"the unit of {name} is {shown(found.get('unit'))}, expected {unit}")
    return milliseconds(found, "value") if unit == "ms" else _tokens(found)


def _tokens(found: dict[str, Any]) -> int | None:
    value = found.get("value")
    if isinstance(value, float) and value.is_integer():
        found = {"value": int(value)}
    return whole_or_none(found, "value")
