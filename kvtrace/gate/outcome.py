"""What a check says: one verdict, and under it every segment, every limit and the head that decides."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, WithJsonSchema

if TYPE_CHECKING:
    from kvtrace.stats.fractions import FractionIntervals

CHECK_SCHEMA_VERSION: Final = "1.2"


MaybeInfinite = Annotated[float, WithJsonSchema({"type": ["number", "null"]}, mode="serialization")]
"""JSON has no infinity and no NaN: they become null."""


class Verdict(StrEnum):
    """Of a limit, a segment or the whole check."""

    within = "within"
    breached = "breached"
    not_enough = "not enough coverage"

    @property
    def exit_code(self) -> int:
        """Return 0 within, 1 breached, 3 not enough coverage to tell."""
        return {Verdict.within: 0, Verdict.breached: 1, Verdict.not_enough: 3}[self]


class Outcome(BaseModel):
    """A part of what a check or a comparison says."""

    model_config = ConfigDict(frozen=True)


class HeadOutcome(Outcome):
    """One KV head's K or V against one limit."""

    layer: int
    kv_head: int
    tensor: str
    value: MaybeInfinite
    """In the limit's unit; the JSON has null for an SQNR without any error, or a ratio without a value."""
    low: float | None = None
    high: float | None = None
    """Interval clustered by request; None where there is none, high alone where the requests are too few."""
    num_groups: int | None = None
    """Request groups that an interval of a value-level ratio rests on."""
    num_requests: int | None = None
    num_affected_requests: int | None = None
    q_value: float | None = None
    """Smallest false-discovery rate at which this head would be claimed to exceed the limit."""


def of_vectors(found: FractionIntervals, entry: int) -> dict[str, Any]:
    """Return what a `HeadOutcome` says of one of the fractions of vectors."""
    return {
        "value": float(found.fraction[entry]),
        "low": float(found.low[entry]),
        "high": None if found.too_few_requests[entry] else float(found.high[entry]),
        "num_requests": int(found.num_requests[entry]),
        "num_affected_requests": int(found.num_affected[entry]),
    }


class LimitOutcome(Outcome):
    """One limit in one segment, over all quantized heads."""

    limit: str
    bound: float
    is_minimum: bool
    verdict: Verdict
    basis: str
    """How it was decided, in words."""
    has_interval: bool
    """False: the estimate alone; within by it, but breached only under a scale for every vector."""
    num_heads: int
    """(layer, kv_head, tensor) that are quantized and have rows."""
    num_breached: int
    num_untold: int
    num_estimated: int = 0
    """Heads of a value-level limit without an interval of their own, judged by their estimate."""
    worst: HeadOutcome | None
    """The head furthest on the wrong side; None where no head is quantized."""
    breached: tuple[HeadOutcome, ...]
    """The worst first, at most ten."""
    reason: str | None = None
    """Why it cannot be told."""


class SegmentOutcome(Outcome):
    """One protected segment."""

    name: str
    workload: str
    phase: str | None
    positions: tuple[int, int] | None
    """Protected, first to last; None: all."""
    prompt_tokens: tuple[int, int] | None
    output_tokens: tuple[int, int] | None
    seen_positions: tuple[int, int] | None
    """Captured, first to last; None: nothing was."""
    seen_prompt_tokens: tuple[int, int] | None
    seen_output_tokens: tuple[int, int] | None
    num_requests: int
    num_tokens: int
    num_incomplete_requests: int
    min_requests: int
    min_tokens: int
    num_nonfinite_vectors: int
    """Vectors of quantized heads that hold NaN or inf: always a breach, since no scale helps against them."""
    verdict: Verdict
    reason: str | None
    limits: tuple[LimitOutcome, ...]


class PolicyReference(Outcome):
    """The policy that decided, so that it is seen to be older than the results."""

    path: str
    name: str
    date: str
    sha256: str
    written_after_run: bool
    """Its date is later than the day the run was made."""
    recorded_in_run: bool | None
    """Whether the run names this policy's hash; None where it names none."""


class HarmOutcome(Outcome):
    """One limit on harm, over all traffic with queries."""

    limit: str
    """max_residual_error, or max_ratio: harm over the baseline's."""
    bound: float
    baseline: str | None = None
    value: float | None = None
    """None: not measured."""
    low: float | None = None
    """95 % over groups of requests, paired for a ratio; None: too few."""
    high: float | None = None
    verdict: Verdict
    reason: str | None = None


class CheckOutcome(Outcome):
    """The whole check."""

    schema_version: str = CHECK_SCHEMA_VERSION
    run: str
    candidate: str
    candidate_note: str | None
    hypothetical: bool
    policy: PolicyReference
    verdict: Verdict
    envelope: str
    """The supported envelope as a sentence."""
    not_tested: tuple[str, ...]
    triggers: tuple[str, ...]
    """Recalibration triggers that fired."""
    confidence: float
    interval_method: str
    ratio_interval_method: str
    """Of value-level ratios, where the run has request groups."""
    multiple_testing: str
    segments: tuple[SegmentOutcome, ...]
    harm: tuple[HarmOutcome, ...] = ()
    """Empty where the policy limits none. Since 1.2."""
