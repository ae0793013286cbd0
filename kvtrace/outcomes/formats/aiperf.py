"""AIPerf: `accuracy_export.jsonl`, and `profile_export.jsonl` beside it, which knows turns and errors.

Source: aiperf 0.13.0, accuracy/jsonl_writer.py and common/models/record_models.py. A request that failed may
be absent from the accuracy export, so the answers are those of the profile export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import flag, table, text, text_or_none, whole
from kvtrace.outcomes.outcome import Answer, Kind
from kvtrace.outcomes.strict_files import json_lines, located

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.outcomes.source import Source

_PROFILE_FILE: Final = "profile_export.jsonl"
_COUNTED_PHASE: Final = "profiling"
_Graded = tuple[str, Kind]


def is_aiperf(first: dict[str, Any]) -> bool:
    """Return whether a file's first line is one of the accuracy export."""
    return {"x_request_id", "grader_name", "passed"} <= first.keys()


def read_aiperf(source: Source) -> Iterator[Answer]:
    """Yield one answer a measured request; warm-up does not count.

    Raises OutcomesError: the profile export is not beside the file, a graded answer is not in it, or a line
    is something else.
    """
    graded = _graded(source.path)
    profile = source.path.with_name(_PROFILE_FILE)
    with located(source.path):
        if not profile.exists():
            raise ValueError(f"expected {_PROFILE_FILE} beside it: it has the turns, and the failed requests")
    for number, record in json_lines(profile):
        with located(profile, f"line {number}"):
            metadata = table(record, "metadata")
            request = text(metadata, "x_request_id")
            task, judged = graded.pop(request, ("", "unjudged"))
            if text(metadata, "benchmark_phase") != _COUNTED_PHASE:
                continue
            conversation = text(metadata, "conversation_id")
            kind, reason = _ended(record, metadata) or (judged, None)
            answer = Answer(
                id=f"{conversation}/{whole(metadata, 'turn_index')}",
                task=task,
                cluster=conversation,
                outcome=kind,
                reason=reason,
                external_id=request,
            )
        yield answer
    with located(source.path):
        if graded:
            raise ValueError(f"grades {len(graded):,} requests that are not in {_PROFILE_FILE} beside it")


def _graded(path: Path) -> dict[str, _Graded]:
    """Return the task and grade of each request, by its X-Request-Id."""
    graded: dict[str, _Graded] = {}
    for number, record in json_lines(path):
        with located(path, f"line {number}"):
            request = text(record, "x_request_id")
            if request in graded:
                raise ValueError("its x_request_id is in the file twice")
            passed, unparsed = flag(record, "passed"), flag(record, "unparsed")
            graded[request] = (
                text_or_none(record, "task") or "",
                "pass" if passed else "malformed" if unparsed else "fail",
            )
    return graded


def _ended(record: dict[str, Any], metadata: dict[str, Any]) -> tuple[Kind, str] | None:
    """Return the failure of a request that has no whole answer; None where it has one."""
    error = table(record, "error")
    if error:
        what = text_or_none(error, "type", most=1000) or "unknown error"
        return ("timeout" if "timeout" in what.lower() else "error"), what
    if metadata.get("was_cancelled") is True:
        return "error", "cancelled"
    return None
