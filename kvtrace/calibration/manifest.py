"""`kvtrace.json` beside calibrated scales: how they were made, on what, and what they cover."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

MANIFEST_VERSION: Final = "1.0"
PROMPT_DIGITS: Final = 32
"""Hex digits that are kept of a prompt's hash: 128 bits tell prompts apart in half the room."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ManifestModel(_Model):
    """The model that the calibration traces were captured from. Digests are None where capture had none."""

    name: str
    revision: str | None = None
    weights_digest: str | None = None
    tokenizer_digest: str | None = None
    chat_template_digest: str | None = None
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int | None = None
    """Positions that the captured engine admitted."""


class ManifestTrace(_Model):
    """One trace, by its content."""

    name: str
    trace_id: str
    digest: str


class ManifestCell(_Model):
    """Rows of one workload, phase and position octave (floor(log2(position)))."""

    workload: str
    phase: str
    position_octave: int
    num_tokens: int
    num_requests: int


class ManifestRows(_Model):
    """The rows of one side of the split."""

    num_requests: int
    num_tokens: int
    max_position: int
    max_prompt_tokens: int
    max_output_tokens: int
    max_computed_tokens: int | None = None
    """Positions below this were open to sampling; None in a manifest of an earlier version."""
    cells: tuple[ManifestCell, ...] = ()


class ManifestPrompts(_Model):
    """Which prompts were calibrated on, for who has the key: an evaluation must not hold them."""

    key_id: str
    """Names the key of the traces that the hashes were made with."""
    hashes: tuple[str, ...]
    """First 32 hex digits of each prompt's keyed hash, sorted."""
    num_without_hash: int
    """Requests whose prompt has no hash: of them nothing can be told."""


class ManifestDataset(_Model):
    """What was calibrated on, and what was held out."""

    traces: tuple[ManifestTrace, ...]
    workloads: tuple[str, ...]
    """Restriction; empty: all but the held-out ones."""
    max_position: int | None
    """Restriction: positions below this."""
    phase: str | None
    holdout: float
    holdout_workloads: tuple[str, ...]
    seed: int
    duplicates_comparable: bool
    calibration: ManifestRows
    held_out: ManifestRows | None
    prompts: ManifestPrompts | None = None
    """None: the traces are under different keys, or the manifest is of an earlier version."""


class ManifestRecipe(_Model):
    """How scales followed from the values."""

    method: Literal["absmax", "percentile", "mse"]
    percentile: float | None
    headroom: float
    granularity: Literal["tensor", "attn_head"]
    merge_kv: bool
    power_of_two: bool
    engine: str


class ManifestGroup(_Model):
    """One layer, KV head and tensor."""

    layer: int
    kv_head: int
    tensor: Literal["k", "v"]
    calibrated_amax: float
    """Largest magnitude among the calibration rows."""
    num_values: int
    scale: float
    """As stored."""


class ManifestEvaluation(_Model):
    """What the scales do to one side's rows, K or V. Sums, so that ratios can be formed at will."""

    rows: Literal["calibration", "held_out"]
    tensor: Literal["k", "v"]
    num_values: int
    num_out_of_range: int
    num_clipped: int
    num_flushed: int
    sum_sq_signal: float
    sum_sq_error: float
    sum_sq_clip_error: float
    worst_layer: int
    worst_kv_head: int
    worst_relative_error: float
    """Σ (x − x̂)² / Σ x² of the worst head."""


class Manifest(_Model):
    """The whole file."""

    schema_version: str = MANIFEST_VERSION
    kind: Literal["kvtrace-calibration"] = "kvtrace-calibration"
    kvtrace_version: str
    created_at: float
    """Unix seconds."""
    model: ManifestModel
    dataset: ManifestDataset
    recipe: ManifestRecipe
    libraries: dict[str, str]
    groups: tuple[ManifestGroup, ...]
    evaluation: tuple[ManifestEvaluation, ...]
    scales_sha256: str = ""
    """Filled in when the scales are written: `ScaleArtifact.sha256` of what lies beside this file."""


def parse_manifest(content: dict[str, Any] | None) -> Manifest | None:
    """Return the manifest of an artifact, None where there is none that this version understands."""
    if (
        content is None
        or str(content.get("schema_version", "")).split(".")[0] != MANIFEST_VERSION.split(".")[0]
    ):
        return None
    try:
        return Manifest.model_validate(content)
    except ValidationError:
        return None
