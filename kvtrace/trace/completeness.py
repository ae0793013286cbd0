"""What a trace should hold of each request, by its sampling rules, and what of it is not there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvtrace.errors import IntegrityError
from kvtrace.trace.format import DROPPED_FILE
from kvtrace.trace.requests import COPY_OR_REPAIR, MOST_ROWS

if TYPE_CHECKING:
    from kvtrace.trace.format import RequestRecord
    from kvtrace.trace.reader import Trace


def expected_positions(request: RequestRecord, stride: int) -> int:
    """Return how many sampled positions the model computed: p % stride == offset, in no missing range.

    >>> from kvtrace.trace.format import RequestRecord
    >>> request = RequestRecord(request=0, sampled=True, sampling_id=0, offset=3, prompt_tokens=40,
    ...     computed_tokens=40, missing=((0, 16),), status="stop", arrived_at=0.0)
    >>> expected_positions(request, stride=16)  # 19 and 35; 3 was a prefix-cache hit
    2
    """

    def sampled_below(end: int) -> int:
        return max(0, (end - request.offset + stride - 1) // stride)

    computed = sampled_below(request.computed_tokens)
    return computed - sum(sampled_below(stop) - sampled_below(start) for start, stop in request.missing)


def rows_lost(trace: Trace) -> dict[int, int]:
    """Return request → rows that were sampled and are not there, summed over the ranks that store any.

    Of a finished request, what was counted as dropped or what its rules chose and a rank does not have,
    whichever is more: an engine that is killed has counted nothing of what it had not committed. Of a running
    request, whose end is not known, and while the engine runs of any, what was counted: the rest may come.
    Raises IntegrityError: what was counted is more than any request has.
    """
    lost: Counter[int] = Counter(dict.fromkeys(trace.requests, 0))
    for store in trace.ranks:
        lost.update({n: sum(reasons.values()) for n, reasons in store.dropped.items() if n in lost})
    if not trace.is_running:
        lost.update(rows_uncommitted(trace))
    if (most := max(lost.values(), default=0)) > MOST_ROWS:
        raise IntegrityError(
            f"{trace.path}: {DROPPED_FILE} of its ranks counts {most:,} rows of one request, expected at "
            f"most {MOST_ROWS:,}. {COPY_OR_REPAIR}"
        )
    return lost


def rows_uncommitted(trace: Trace) -> dict[int, int]:
    """Return request → rows of finished requests that are neither stored nor counted, summed over ranks.

    While the engine runs they wait for a commit; where it ended out of order they are lost.
    """
    uncommitted: Counter[int] = Counter()
    for store, token_of_row in zip(trace.ranks, trace.joined.token_of_row, strict=True):
        stored = Counter(trace.tokens.request[token_of_row[token_of_row >= 0]].tolist())
        has_layers = any(layer.captured for layer in store.rank.layers)
        for number, request in trace.requests.items():
            if has_layers and request.sampled and request.status != "running":
                dropped = sum(store.dropped.get(number, {}).values())
                stride = trace.sampling[request.sampling_id].position_stride
                missing = expected_positions(request, stride) - stored[number]
                uncommitted[number] += max(missing - dropped, 0)
    return uncommitted
