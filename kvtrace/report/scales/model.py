"""The scales report: one row per head and tensor, and the findings. Its JSON schema is published and
versioned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from kvtrace.findings.finding import Severity  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.trace.cache_dtypes import CacheKind  # noqa: TC001

if TYPE_CHECKING:
    from kvtrace.findings.finding import Finding

SCALES_REPORT_VERSION: Final = "1.2"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class ArtifactSummary(_Part):
    """The artifact as shipped."""

    path: str
    format: str
    granularity: Literal["tensor", "attn_head"]
    sha256: str
    """Over the scale tensors as read."""
    num_layers_with_scales: int
    num_ranks: int | None
    unmatched_names: tuple[str, ...]
    number_format: str | None = None
    """fp8, int8, int8-per-channel, nvfp4, mixed (layers differ) or unknown; null: no scales. Since 1.2."""
    envelope: dict[str, Any] | None
    """What a manifest says was calibrated on; null without one."""


class EngineSummary(_Part):
    """The setup that `engine_scale` is for."""

    engine: str
    backend: str | None
    tp: int
    granularity: Literal["tensor", "attn_head"]
    """As applied."""
    notes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    """Those of them that no finding repeats: which versions read the format, say. Since 1.2."""


class LayerSummary(_Part):
    """A layer that is no plain layer with an FP8 cache of its own. Since 1.2."""

    layer: int
    keeps: Literal["state", "shared cache", "unquantized cache", "other format"]
    reads_cache_of: int | None = None
    """The earlier layer whose cache it reads; null: none, or it is not known which."""
    number_format: str | None = None


class ModuleSummary(_Part):
    """Scales that are not the language model's. Since 1.2."""

    kind: Literal["draft", "vision", "audio", "encoder", "cross-attention", "unknown"]
    prefix: str
    num_scales: int
    min_scale: float
    max_scale: float


class ObservedTrace(_Part):
    """The trace that observed values come from."""

    path: str
    digest: str
    num_tokens: int
    max_position: int
    has_fp8_cache: bool
    """Static FP8, and no layer is quantized in another way."""
    cache_kind: CacheKind
    """Of the captured layers taken together. Since 1.1."""
    cache_dtypes: tuple[str, ...]
    """Distinct cache dtypes of the captured layers. Since 1.1."""
    engine: str
    """Numerics that `optimal_scale` minimizes the error of."""


class AuditedFinding(_Part):
    """One finding of the audit: of its fields those that an artifact by itself has."""

    id: str
    severity: Severity
    message: str
    """What is the case, in one sentence."""
    action: str
    """What to do about it."""
    layers: tuple[int, ...] = ()
    """Layers concerned; empty: the artifact as a whole."""
    evidence: dict[str, Any] = Field(default_factory=dict)
    """The numbers that settle it; names carry the unit."""

    @classmethod
    def of(cls, finding: Finding) -> Self:
        """Return the entry of a rule's finding."""
        return cls(
            id=finding.id,
            severity=finding.severity,
            message=finding.message,
            action=finding.action,
            layers=finding.layers,
            evidence=finding.evidence[0],
        )


class ScaleRow(_Part):
    """One layer, KV head and tensor. Null: not shipped, or not observed."""

    layer: int
    kv_head: int
    tensor: Literal["k", "v"]
    shipped_scale: float | None
    shipped_origin: str | None
    engine_scale: float | None
    """What the engine would use."""
    engine_origin: str | None
    effective_scale: float | None
    """What the traced engine used; null where its cache was not static FP8."""
    covered_amax: float | None
    """448 × engine_scale; of INT8 127 × the scale; null where block scales decide it."""
    observed_amax: float | None
    optimal_scale: float | None
    """bfloat16 scale of least squared error on the trace; one for all heads of a per-tensor artifact."""


class QueryScaleRow(_Part):
    """The scale of Q in one layer; of several heads the largest. Since 1.2."""

    layer: int
    shipped_scale: float
    shipped_origin: str
    engine_scale: float | None
    engine_origin: str | None


class ScalesReport(_Part):
    """What `kvtrace scales --format json` prints."""

    schema_version: str = SCALES_REPORT_VERSION
    artifact: ArtifactSummary
    engine: EngineSummary
    trace: ObservedTrace | None
    findings: tuple[AuditedFinding, ...]
    scales: tuple[ScaleRow, ...]
    q_scales: tuple[QueryScaleRow, ...] = ()
    """Of the layers that ship one."""
    layers: tuple[LayerSummary, ...] = ()
    other_modules: tuple[ModuleSummary, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)
