"""What a comparison says: the decision table, one row a candidate."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from kvtrace.gate.outcome import (
    HeadOutcome,
    MaybeInfinite,
    Outcome,
    PolicyReference,
    SegmentOutcome,
)

if TYPE_CHECKING:
    from kvtrace.stats.paired import PairedDifference

COMPARISON_SCHEMA_VERSION: Final = "1.2"


class Role(StrEnum):
    """What a row stands for in the decision."""

    baseline = "BF16 baseline"
    default_scales = "default scales"
    as_served = "as served"
    calibrated = "calibrated"
    online = "online"
    cache_format = "cache format"
    layers_excluded = "selective layer exclusion"
    unsupported = "unsupported"


class Decision(StrEnum):
    """By the policy alone; without one nothing is decided."""

    baseline = "baseline"
    within = "within the policy"
    breached = "breaches the policy"
    not_enough = "not enough coverage"
    invalid = "invalid"
    no_policy = "not decided: no policy"


class TensorEvidence(Outcome):
    """K or V of one candidate, over all heads and requests."""

    tensor: str
    vectors_clipped_frac: MaybeInfinite
    low: float | None
    high: float | None
    """Interval clustered by request; None where the requests are too few."""
    num_requests: int
    num_affected_requests: int
    num_heads: int
    num_heads_quantized: int
    num_heads_clipped: int
    worst: HeadOutcome | None
    """By share of its vectors clipped; None where no vector is."""
    clipped_frac: float | None
    """Of values."""
    flushed_frac: float | None
    clip_error_frac: float | None
    sqnr_db: float | None
    """Over all heads; None where nothing was lost."""
    worst_sqnr_db: float | None
    """Of the head with the lowest."""
    clipped_low: float | None = None
    clipped_high: float | None = None
    """Interval of clipped_frac over request groups; None where they are too few, or the run has none. So are
    the next ones."""
    clip_error_low: float | None = None
    clip_error_high: float | None = None
    sqnr_low_db: float | None = None
    sqnr_high_db: float | None = None


class PairedSegment(Outcome):
    """Clipped vectors against another row in one segment, request by request."""

    name: str
    difference: MaybeInfinite
    low: float
    high: float
    verdict: str
    num_requests: int
    num_lower: int
    num_higher: int


class Paired(Outcome):
    """Clipped vectors against another row, request by request."""

    tensor: str
    difference: MaybeInfinite
    """Share of vectors clipped here minus there."""
    low: float
    high: float
    verdict: str
    """lower, higher, equal or not enough to tell, seen from this row."""
    num_requests: int
    num_lower: int
    num_higher: int
    """Requests with fewer, and with more, clipped vectors here."""
    num_heads_better: int
    num_heads_worse: int
    regressions: tuple[HeadOutcome, ...]
    """Heads that clip more here; `value` is the share of vectors by which; worst first, at most ten."""
    sqnr_change_db: float | None = None
    """SQNR here minus there, over all heads; above 0: better here. None without request groups."""
    sqnr_change_low_db: float | None = None
    sqnr_change_high_db: float | None = None
    """Its interval over request groups, paired; None where they are too few."""
    segments: tuple[PairedSegment, ...] = ()
    """The same by the policy's segments; by workload without a policy."""


def of_difference(found: PairedDifference) -> dict[str, Any]:
    """Return what `Paired` and `PairedSegment` say of a difference alike."""
    alike = ("difference", "low", "high", "verdict", "num_requests", "num_lower", "num_higher")
    return {name: getattr(found, name) for name in alike}


class DecisionRow(Outcome):
    """One candidate."""

    name: str
    run: str
    candidate: str
    role: Role
    setup: str
    """What it is, in words: format, numerics, granularity, artifact, layers left out."""
    note: str | None
    """What the engine would do differently than asked; scored as it would run."""
    hypothetical: bool
    against: str | None
    """The row that it is compared with."""
    changed: tuple[str, ...]
    """What differs from that row; several: the bundle was changed, not one thing."""
    held_constant: tuple[str, ...]
    evidence: tuple[TensorEvidence, ...]
    """Empty where invalid: never scored."""
    paired: tuple[Paired, ...]
    not_paired: str | None
    """Why there is no paired comparison; None where there is."""
    decision: Decision
    reason: str | None
    """Why invalid, or which segments decide."""
    segments: tuple[SegmentOutcome, ...] = ()
    """What the policy says of each of its segments, as `kvtrace check` does; empty without a policy."""


class Comparison(Outcome):
    """The decision table."""

    schema_version: str = COMPARISON_SCHEMA_VERSION
    runs: tuple[str, ...]
    policy: PolicyReference | None
    held_constant: dict[str, str | None]
    """Field → value that every run has; None where it is not recorded (of a manifest: not in every run)."""
    allowed_different: dict[str, tuple[str | None, ...]]
    """Field → value per run, where --allow-different was given and they do differ."""
    confidence: float
    interval_method: str
    ratio_interval_method: str
    """Of value-level ratios, where the runs have request groups."""
    rows: tuple[DecisionRow, ...]
    same_rows: tuple[str, ...]
    """Candidates left out because another run has the same one on the same requests."""
    baseline: str | None = None
    """The row named for all others to be compared with; None: each with the one that differs in the least."""
