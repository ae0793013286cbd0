"""What a feeding process left: every committed row, bit for bit, and what the trace says of the rest."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from faults.feeding import ROUND, row_of_token, tensors
from kvtrace.trace.completeness import expected_positions, rows_lost
from kvtrace.trace.format import UNUSED_ROW
from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize
from kvtrace.trace.summary_text import summary_text

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Stored:
    """A checked trace."""

    num_rows: int
    """Committed rows, all found to be what was handed over."""
    num_dropped: int
    """Rows that dropped.jsonl counts."""
    failure: str | None
    closed: bool
    text: str
    """What `kvtrace inspect --verify` prints."""


def reports(path: Path) -> dict[str, Any]:
    """Return the last of each thing that a process said; a line cut by its death is left out."""
    said: dict[str, Any] = {"handed": 0, "refused": 0, "committed": 0}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                said |= json.loads(line)
            except ValueError:
                break
    return said


def check_stored(path: Path) -> Stored:
    """Open a trace and compare every committed row with what was handed over.

    Raises InputError where it does not open, AssertionError where a value is another one, or where a finished
    request lacks rows and the trace does not say so.
    """
    trace = open_trace(path, may_lack_tokens=True)
    (store,) = trace.ranks
    used = np.flatnonzero(store.rows["request"] != UNUSED_ROW)
    tokens = list(
        zip(store.rows["request"][used].tolist(), store.rows["position"][used].tolist(), strict=True)
    )
    assert len(set(tokens)) == len(tokens)
    expected = [row_of_token()[request % ROUND, position] for request, position in tokens]
    for layer, tensor, spec in store.tensor_specs() if store.num_chunks else ():
        found = np.concatenate([store.read_chunk(spec, chunk) for chunk in range(store.num_chunks)])[used]
        assert (found == tensors()[layer.index, tensor][expected]).all(), (
            f"layer {layer.index} {tensor} differs"
        )
    summary = summarize(trace, verify=True)
    complete = summary.completeness
    lacking, lost = _truly_lacking(trace, tokens), rows_lost(trace)
    assert complete.num_expected - complete.num_stored == lacking
    assert sum(lost[r.request] for r in trace.requests.values() if r.status != "running") == lacking
    return Stored(
        num_rows=len(tokens),
        num_dropped=complete.num_dropped,
        failure=store.commit.failure,
        closed=summary.closed,
        text=summary_text(summary),
    )


def _truly_lacking(trace: Trace, tokens: list[tuple[int, int]]) -> int:
    """Return how many sampled positions of the finished requests were handed over and are not stored."""
    stored = Counter(request for request, _ in tokens)
    handed = Counter(request for request, _ in row_of_token())
    finished = [r for r in trace.requests.values() if r.sampled and r.status != "running"]
    # The sample is complete: what the rules chose of a request is what was handed over of it.
    assert all(
        handed[r.request % ROUND] == expected_positions(r, trace.sampling[0].position_stride)
        for r in finished
    )
    return sum(handed[r.request % ROUND] - stored[r.request] for r in finished)
