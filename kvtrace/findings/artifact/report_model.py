"""The scales report: one row per head and tensor, and the findings. Its JSON schema is published and
versioned.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from kvtrace.findings.artifact.finding import Finding  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.trace.cache_dtypes import CacheKind  # noqa: TC001

SCALES_REPORT_VERSION: Final = "1.1"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class ArtifactSummary(_Model):
    """The artifact as shipped."""

    path: str
    format: str
    granularity: Literal["tensor", "attn_head"]
    sha256: str
    """Over the scale tensors as read."""
    num_layers_with_scales: int
    num_ranks: int | None
    unmatched_names: tuple[str, ...]
    envelope: dict[str, Any] | None
    """What a manifest says was calibrated on; null without one."""


class EngineSummary(_Model):
    """The setup that `engine_scale` is for."""

    engine: str
    backend: str | None
    tp: int
    granularity: Literal["tensor", "attn_head"]
    """As applied."""
    notes: tuple[str, ...]


class TraceSummary(_Model):
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


class ScaleRow(_Model):
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
    """448 × engine_scale"""
    observed_amax: float | None
    optimal_scale: float | None
    """bfloat16 scale of least squared error on the trace; one for all heads of a per-tensor artifact."""


class ScalesReport(_Model):
    """What `kvtrace scales --format json` prints."""

    schema_version: str = SCALES_REPORT_VERSION
    artifact: ArtifactSummary
    engine: EngineSummary
    trace: TraceSummary | None
    findings: tuple[Finding, ...]
    scales: tuple[ScaleRow, ...]

    @property
    def has_errors(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)
