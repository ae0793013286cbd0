"""From the numbers of a segment to its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.figures import count, percent
from kvtrace.quality.comparison import ReasonId, Verdict
from kvtrace.quality.measure import pairs_missing
from kvtrace.sample_size import requests_without_event

if TYPE_CHECKING:
    from kvtrace.quality.measure import Measured
    from kvtrace.quality.policy import SegmentLimits


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict and why."""

    verdict: Verdict
    reason_id: ReasonId
    reason: str
    pairs_missing: int | None = None


def decide(
    found: Measured | None,
    limits: SegmentLimits,
    *,
    confidence: float,
    claimed: bool,
    blocked: Decided | None,
) -> Decided:
    """Return a segment's verdict.

    claimed: whether a loss beyond the margin holds among all segments (false-discovery rate). blocked: what
    stands against any verdict. Nothing is decided within the error of an end that was drawn. In this order:
    blocked; a loss beyond the margin is breached, whatever the floor; a baseline under the floor cannot tell.
    """
    margin, floor, least = limits.margin, limits.floor, limits.pairs
    assert margin is not None
    assert floor is not None
    assert least is not None
    if blocked is not None:
        return blocked
    if found is None:
        unseen = requests_without_event(margin, confidence=confidence)
        return Decided(
            Verdict.too_few, "too-few-pairs", "no answer of the segment is paired", max(least, unseen or 0)
        )
    one = found.difference
    if one.low - one.low_error > margin and claimed:
        return Decided(
            Verdict.breached,
            "loss-beyond-margin",
            f"at least {percent(one.low)} of answers are lost, and {percent(margin)} may be",
        )
    if found.baseline_pass.value < floor:
        return Decided(
            Verdict.cannot_tell,
            "baseline-under-the-floor",
            f"the baseline passes {percent(found.baseline_pass.value)}, under the floor of {percent(floor)}",
        )
    after = found.candidate_pass
    if after.high is not None and after.high < floor:
        return Decided(
            Verdict.breached,
            "under-the-floor",
            f"at most {percent(after.high)} pass, under the floor of {percent(floor)}",
        )
    missing = pairs_missing(found, limits, confidence)
    if one.num_pairs < least:
        few = f"{count(one.num_pairs, 'pair')}, and the policy asks for {least:,}"
        return Decided(Verdict.too_few, "too-few-pairs", few, max(missing or 0, least - one.num_pairs))
    if one.high + one.high_error > margin:
        across = f"up to {percent(one.high)} of answers may be lost, and {percent(margin)} may be"
        return Decided(Verdict.too_few, "interval-reaches-across", across, missing)
    if after.low < floor:
        unsure = f"the pass rate may be {percent(after.low)}, under the floor of {percent(floor)}"
        return Decided(Verdict.too_few, "floor-not-shown", unsure, missing)
    return Decided(
        Verdict.within,
        "loss-within-margin",
        f"at most {percent(one.high)} of answers are lost, and {percent(margin)} may be"
        if one.high > 0
        else "fewer answers fail than under the baseline",
    )
