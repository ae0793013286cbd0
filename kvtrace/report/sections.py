"""What a report says, as plain values: the shared model of the text and the JSON report.

Every share has its numerator and denominator beside it. A share weighs each row by what it was sampled from,
so it is the quotient of the two counts exactly where one sampling rule was in force. None: not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict

from kvtrace.findings.diagnose import HeadLoss, ScalesVerdict  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.findings.finding import Finding  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.report.answer.model import Answer  # noqa: TC001
from kvtrace.report.harm.model import Harm  # noqa: TC001
from kvtrace.trace.cache_dtypes import CacheKind  # noqa: TC001

Tensor = Literal["k", "v"]
_Kind = TypeVar("_Kind")

REPORT_SCHEMA_VERSION: Final = "1.4"


@dataclass_transform(frozen_default=True)
def _part(kind: type[_Kind]) -> type[_Kind]:
    """Make a frozen dataclass; the text under a field becomes its description in the published schema."""
    kind.__pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True)(kind)


@_part
class Measured:
    """Counts and shares of some values under one candidate."""

    num_values: int
    """Finite values."""
    num_nonfinite: int
    """NaN and inf; in no other count."""
    num_out_of_range: int | None
    """Values with |x / scale| > MAX; null where nothing can be out of range, as is `num_clipped`."""
    num_clipped: int | None
    """Values beyond the point where rounding leaves MAX: these lose more than rounding does."""
    num_flushed: int
    """Non-zero values that become 0."""
    num_vectors: int | None
    """Vectors (one token's values of a head) with a finite value."""
    num_vectors_out_of_range: int | None
    """Vectors whose widest value is out of range."""
    num_vectors_clipped: int | None
    """Vectors with a clipped value."""
    out_of_range_frac: float | None
    """Of values, 0 to 1."""
    clipped_frac: float | None
    """Of values, 0 to 1."""
    flushed_frac: float | None
    """Of values, 0 to 1."""
    vectors_out_of_range_frac: float | None
    """Of vectors, 0 to 1."""
    vectors_clipped_frac: float | None
    """Of vectors, 0 to 1."""
    clip_error_frac: float | None
    """Share of the squared error that clipped values make; None where nothing is lost."""
    sqnr_db: float | None
    """10·log10(signal / error); None where nothing is lost."""


@_part
class Source:
    """One trace of the run."""

    name: str
    path: str
    trace_sha256: str
    captured_at: float
    """Unix seconds."""
    closed: bool
    """False: the capture was not shut down in order and may have lost its last rows."""
    running: bool
    """The engine still ran when its trace was read; what it stored later is not in here. Since 1.3."""
    model: str
    weights_digest: str | None
    engine: str
    engine_version: str
    device: str
    kv_cache_dtype: str
    attention_backends: tuple[str, ...]
    has_fp8_cache: bool
    """False: the engine wrote no static FP8, so no loaded scale was in effect."""
    cache_kind: CacheKind
    """Of the captured layers taken together; other: quantized, but not as static FP8. Since 1.1."""
    cache_dtypes: tuple[str, ...]
    """Distinct cache dtypes of the captured layers; empty where the run does not tell. Since 1.1."""


@_part
class LoadedScales:
    """One candidate's K or V scales in one trace, against those the engine really used."""

    source: str
    candidate: str
    tensor: Tensor
    num_layers: int
    num_scales: int
    """KV heads over all layers."""
    min_scale: float | None
    """None: not quantized."""
    max_scale: float | None
    min_effective_scale: float | None
    """None: no FP8 in effect."""
    max_effective_scale: float | None
    num_as_effective: int | None
    """Scales that are the engine's, a bf16 copy included; None: no FP8 in effect."""
    min_headroom: float | None
    """Smallest covered_amax / observed amax of a head; below 1 values are out of range."""


@_part
class TensorTotals:
    """All heads of K, or of V, under one candidate."""

    tensor: Tensor
    measured: Measured
    num_heads: int
    """(layer, kv_head) pairs."""
    num_heads_out_of_range: int
    num_heads_clipped: int
    worst_layer: int | None
    """Of the head with the largest clipped share, then out-of-range share; None where all are in range."""
    worst_kv_head: int | None
    worst_clipped_frac: float | None


@_part
class CandidateSummary:
    """One set of scales as one engine would apply it."""

    candidate: str
    kind: Literal["bf16", "effective", "unit", "artifact", "online", "format", "swept", "fresh"]
    status: Literal["valid", "invalid"]
    reason: str | None
    """Why it is invalid."""
    hypothetical: bool
    """True unless the captured engine really wrote FP8 with these scales, in this way."""
    engine: str | None
    format: str | None
    granularity: str | None
    artifact: str | None
    artifact_sha256: str | None
    note: str | None
    rounding_floor_db: float | None
    """SQNR that rounding alone leaves in this format; no scale does better."""
    tensors: tuple[TensorTotals, ...]
    """K and V; empty where invalid."""
    bytes_per_token: int | None = None
    """K, V and their scales, over the layers and heads captured; None: invalid, or not known. Since 1.2."""
    tokens_in_budget: int | None = None
    """⌊budget / bytes_per_token⌋; None: no budget. `kvtrace capacity` counts blocks and windows too."""


@_part
class Place:
    """The stratum in which a head leaves the range most."""

    name: str
    """A workload, or positions such as 2,048–4,095."""
    out_of_range_frac: float
    clipped_frac: float
    num_tokens: int


@_part
class Head:
    """One head under one candidate."""

    candidate: str
    tensor: Tensor
    layer: int
    kv_head: int
    rank: int
    """By out-of-range share of values among the candidate's K or V heads; 1 is worst."""
    vector_rank: int
    """By out-of-range share of vectors."""
    measured: Measured
    max_abs: float | None
    covered_amax: float | None
    worst_positions: Place | None
    """None where all values are in range."""
    worst_workload: Place | None


@_part
class Intervals:
    """Low and high ends; null: too few requests to tell, or a run without what they need."""

    vectors_clipped_low: float | None
    """Of the share of vectors with a clipped value, over requests."""
    vectors_clipped_high: float | None
    clipped_low: float | None
    """Of the share of values clipped, over request groups (kvtrace replay --intervals), as those below."""
    clipped_high: float | None
    clip_error_low: float | None
    """Of the share of the squared error that is due to clipping."""
    clip_error_high: float | None
    sqnr_low_db: float | None
    sqnr_high_db: float | None


@_part
class Stratum:
    """All heads of K, or of V, under one candidate, in one position octave or one workload."""

    candidate: str
    tensor: Tensor
    phase: Literal["prefill", "decode"] | None
    """None: both."""
    position_from: int | None
    """None: all positions."""
    position_to: int | None
    workload: str | None
    """None: all workloads."""
    num_requests: int | None
    num_tokens: int | None
    measured: Measured
    num_heads: int
    num_heads_out_of_range: int
    num_heads_clipped: int
    worst_layer: int | None
    """Of the head with the largest clipped share there, then out-of-range share."""
    worst_kv_head: int | None
    worst_clipped_frac: float | None
    intervals: Intervals | None = None


@_part
class SamplingRules:
    """One set of sampling rules of a trace."""

    source: str
    sampling_id: int
    position_stride: int
    """1 of this many positions of a sampled request is captured."""
    request_fraction: float
    """Share of requests that are sampled, 0 to 1."""


@_part
class Captured:
    """What the trace holds of one workload."""

    source: str
    workload: str
    num_requests: int
    num_sampled_requests: int
    num_captured_requests: int
    num_incomplete_requests: int
    num_prefill_tokens: int
    num_decode_tokens: int
    max_position: int | None
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    num_missing: int
    """Positions not captured: prefix-cache hits, or capture was switched off."""
    num_dropped: int
    """Rows sampled and lost."""


@_part
class Report:
    """A run, told in the order in which an incident asks."""

    schema_version: str
    run: str | None
    """Its directory as given; None: replayed for this report alone and not kept."""
    created_at: float
    """Unix seconds."""
    kvtrace_version: str
    answer: Answer
    """The first screen (since 1.2), on the scales that ran, else on those to take; so is `verdict` (1.3)."""
    device: str
    sources: tuple[Source, ...]
    loaded: tuple[LoadedScales, ...]
    candidates: tuple[CandidateSummary, ...]
    shown: tuple[str, ...]
    """Those of them that `heads`, `positions`, `workloads` and the outputs for people tell of. Since 1.3."""
    top: int
    """How many heads of each ranking are listed."""
    heads: tuple[Head, ...]
    """The first `top` by values and the first `top` by vectors, per candidate and tensor."""
    positions: tuple[Stratum, ...]
    workloads: tuple[Stratum, ...]
    sampling: tuple[SamplingRules, ...]
    captured: tuple[Captured, ...]
    not_visible: tuple[str, ...]
    verdict: ScalesVerdict
    findings: tuple[Finding, ...]
    """Ranked; the verdict rests on them."""
    losses: tuple[HeadLoss, ...]
    """Every head under the scales of `losses_under`."""
    losses_under: str | None
    budget_bytes: int | None = None
    """For the cache, as given. Since 1.2."""
    harm: Harm | None = None
    """What errors do to attention; None: no queries were captured. Since 1.4."""
