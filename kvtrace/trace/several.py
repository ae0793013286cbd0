"""Several traces that are looked at together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.errors import InputError
from kvtrace.trace.format import UNUSED_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.trace.reader import Trace


def refuse_same_capture(traces: Sequence[Trace]) -> None:
    """Raise InputError where two traces are of one capture: a copy, a repair, or one given twice.

    Its requests would count twice, and what is judged by the number of requests would be judged wrongly.
    """
    first: dict[str, Trace] = {}
    for trace in traces:
        other = first.setdefault(trace.record.trace_id, trace)
        if other is not trace:
            raise InputError(
                f"{trace.path}: is of the same capture as {other.path} (a copy, a repair, or given twice), "
                "so its requests would count twice; give one of them"
            )


def rows_left_out(traces: Sequence[Trace]) -> Iterator[str]:
    """Yield a line for each trace with rows that count nowhere, since nothing is known of their requests."""
    for trace in traces:
        if unknown := trace.joined.num_unknown:
            rows = sum(int((store.rows["request"] != UNUSED_ROW).sum()) for store in trace.ranks)
            yield (
                f"{trace.path}: {unknown:,} of {rows:,} rows are left out: their requests have no record "
                "(lost with the engine, or requests.jsonl was cut)"
            )
