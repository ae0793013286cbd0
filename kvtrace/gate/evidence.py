"""The numbers of a decision table: K and V apart, intervals clustered by request, pairs by request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.gate.comparison import Paired, TensorEvidence, of_difference
from kvtrace.gate.outcome import HeadOutcome, of_vectors
from kvtrace.gate.request_counts import request_counts
from kvtrace.gate.segment_pairs import paired_segments, segment_counts
from kvtrace.gate.value_evidence import group_sums, ratio_ends, sqnr_change
from kvtrace.stats.fractions import fraction_intervals, request_sums
from kvtrace.stats.paired import paired_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.gate.request_counts import RequestCounts
    from kvtrace.gate.segment_pairs import Counts
    from kvtrace.gate.segments import ProtectedSegment
    from kvtrace.gate.value_evidence import GroupSums
    from kvtrace.query import RunConnection

TENSORS: Final = ("k", "v")
_MOST_LISTED: Final = 10

_VALUES: Final = """
SELECT tensor, clipped_frac, flushed_frac, clip_error_frac, sqnr_db, worst_sqnr_db
FROM value_totals(chosen_cells)
WHERE candidate = $candidate
"""
_VALUE_COLUMNS: Final = ("clipped_frac", "flushed_frac", "clip_error_frac", "sqnr_db", "worst_sqnr_db")

_LARGEST_CODES: Final = """
SELECT source, layer, kv_head, tensor,
  coalesce(max_unclipped_code, 2147483647) AS code
FROM scales
WHERE candidate = $candidate
"""
"""Without a scale nothing is clipped: above every dtype's codes, float32's included."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a run holds of one valid candidate."""

    counts: RequestCounts
    groups: GroupSums
    by_segment: Counts


def measurements(
    connection: RunConnection, candidate: str, segments: Sequence[ProtectedSegment]
) -> Measurements:
    """Return what evidence is made of; connection: with the views and measures of queries/."""
    return Measurements(
        request_counts(connection, candidate),
        group_sums(connection, candidate),
        segment_counts(connection, candidate, segments),
    )


def tensor_evidence(
    connection: RunConnection, candidate: str, measured: Measurements, confidence: float
) -> tuple[TensorEvidence, ...]:
    """Return K and V of one valid candidate, over all heads and requests of its run."""
    counts = measured.counts
    values = {
        row[0]: dict(zip(_VALUE_COLUMNS, row[1:], strict=True))
        for row in connection.execute(_VALUES, {"candidate": candidate}).fetchall()
    }
    return tuple(
        _one_tensor(
            tensor,
            counts,
            confidence,
            values.get(tensor, {}) | ratio_ends(measured.groups.get(tensor), confidence),
        )
        for tensor in TENSORS
        if counts.of_tensor(tensor).any()
    )


def paired_evidence(
    here: Measurements,
    there: Measurements,
    segments: Sequence[ProtectedSegment],
    *,
    nested: dict[str, bool],
    confidence: float,
) -> tuple[Paired, ...]:
    """Return what differs from `there`, which must hold the same vectors: clipped vectors, and SQNR.

    nested: tensor → whether one of the two covers, in every head, all that the other does.
    """
    return tuple(
        _one_pair(
            tensor,
            here.counts,
            there.counts,
            nested=nested[tensor],
            confidence=confidence,
            **sqnr_change(here.groups.get(tensor), there.groups.get(tensor), confidence),
            segments=paired_segments(
                here.by_segment,
                there.by_segment,
                segments,
                tensor,
                nested=nested[tensor],
                confidence=confidence,
            ),
        )
        for tensor in TENSORS
        if here.counts.of_tensor(tensor).any()
    )


def nested_tensors(one: tuple[RunConnection, str], other: tuple[RunConnection, str]) -> dict[str, bool]:
    """Return tensor → whether one candidate's ranges hold the other's in every head and trace."""
    codes, other_codes = _largest_codes(*one), _largest_codes(*other)
    found = {}
    for tensor in TENSORS:
        gaps = [
            code - other_codes[key] for key, code in codes.items() if key[3] == tensor and key in other_codes
        ]
        found[tensor] = all(gap >= 0 for gap in gaps) or all(gap <= 0 for gap in gaps)
    return found


def _one_tensor(
    tensor: str, counts: RequestCounts, confidence: float, values: dict[str, float | None]
) -> TensorEvidence:
    pooled = fraction_intervals(request_sums(*counts.pooled(tensor)), confidence=confidence)
    chosen = np.flatnonzero(counts.of_tensor(tensor))
    clipped = counts.events[chosen].sum(axis=1) > 0
    num_quantized = int(counts.is_quantized[chosen].sum())
    # Where nothing can be clipped, that is known, not estimated.
    known = not counts.can_clip[chosen].any()
    high = 0.0 if known else None if pooled.too_few_requests else float(pooled.high)
    return TensorEvidence(
        tensor=tensor,
        vectors_clipped_frac=float(pooled.fraction),
        low=float(pooled.low),
        high=high,
        num_requests=int(pooled.num_requests),
        num_affected_requests=int(pooled.num_affected),
        num_heads=chosen.size,
        num_heads_quantized=num_quantized,
        num_heads_clipped=int(clipped.sum()),
        worst=_worst_head(counts, chosen, confidence),
        **(dict.fromkeys(_VALUE_COLUMNS) | values),
    )


def _worst_head(counts: RequestCounts, chosen: NDArray[Any], confidence: float) -> HeadOutcome | None:
    if not counts.events[chosen].any():
        return None
    found = fraction_intervals(
        request_sums(counts.events[chosen], counts.trials[chosen]), confidence=confidence
    )
    place = int(np.nanargmax(found.fraction))
    return _head(counts, int(chosen[place]), found, place)


def _one_pair(
    tensor: str, counts: RequestCounts, rival: RequestCounts, *, nested: bool, confidence: float, **told: Any
) -> Paired:
    events, trials = counts.pooled(tensor)
    found = paired_difference(events, rival.pooled(tensor)[0], trials, nested=nested, confidence=confidence)
    chosen = np.flatnonzero(counts.of_tensor(tensor))
    more = counts.events[chosen] - rival.events[chosen]
    total = more.sum(axis=1)
    return Paired(
        tensor=tensor,
        **of_difference(found),
        num_heads_better=int((total < 0).sum()),
        num_heads_worse=int((total > 0).sum()),
        regressions=_regressions(counts, chosen, np.maximum(more, 0.0), total, confidence),
        **told,
    )


def _regressions(
    counts: RequestCounts,
    chosen: NDArray[Any],
    more: NDArray[np.float64],
    total: NDArray[np.float64],
    confidence: float,
) -> tuple[HeadOutcome, ...]:
    """Return the heads that clip more; of one head one candidate covers the other, so `more` is a count."""
    found = fraction_intervals(request_sums(more, counts.trials[chosen]), confidence=confidence)
    worst_first = np.argsort(-found.fraction, kind="stable")[:_MOST_LISTED]
    return tuple(
        _head(counts, int(chosen[place]), found, int(place)) for place in worst_first if total[place] > 0
    )


def _head(counts: RequestCounts, entry: int, found: Any, place: int) -> HeadOutcome:
    layer, kv_head, tensor = counts.heads[entry]
    return HeadOutcome(layer=layer, kv_head=kv_head, tensor=tensor, **of_vectors(found, place))


def _largest_codes(connection: RunConnection, candidate: str) -> dict[tuple[str, int, int, str], int]:
    rows = connection.execute(_LARGEST_CODES, {"candidate": candidate}).fetchall()
    return {(source, layer, kv_head, tensor): code for source, layer, kv_head, tensor, code in rows}
