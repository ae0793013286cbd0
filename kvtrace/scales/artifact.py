"""What a scale artifact holds, exactly as stored: the one type that every reader returns."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kvtrace.trace.cache_layers import CacheLayers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kvtrace.scales.formats.contract import Format
    from kvtrace.scales.modules import ModuleKind
    from kvtrace.scales.number_format import NumberFormat

ScaleTensor = Literal["k", "v", "q", "kv", "prob"]
"""`kv`: one number for K and V. `prob`: the scale of the attention probabilities."""
Granularity = Literal["tensor", "attn_head"]


@dataclass(frozen=True, slots=True)
class StoredScale:
    """One scale tensor or JSON number: a dequantization multiplier, code = fp8(x / s), x' = code · s."""

    layer: int
    tensor: ScaleTensor
    values: tuple[float, ...]
    """One, or one per head, flattened; as stored: not checked, so 0, NaN and inf are possible."""
    shape: tuple[int, ...]
    dtype: str
    """As safetensors spells it (`BF16`, `F32`, …), or `JSON`."""
    file: str
    """Relative to the artifact's path."""
    key: str
    """Tensor name, or the path inside the JSON document."""
    rank: int | None = None
    """Tensor-parallel rank, in formats that store one scale per rank; None elsewhere."""

    @property
    def origin(self) -> str:
        """Return `file:key`, where the value was read."""
        return f"{self.file}:{self.key}"


WhyUnmatched = Literal[
    "unknown-name",  # no engine maps it
    "unusable-tensor",  # a dtype, shape or layer number that no scale has
    "outside-index",  # its file is not in the checkpoint's index
    "other-module",  # of a tower or encoder that keeps no KV cache
    "other-format",  # of a number format that is not FP8, for another engine
]


@dataclass(frozen=True, slots=True)
class ProjectionScale:
    """A scale of a linear layer that makes K, V or both; no scale of the cache."""

    layer: int
    tensors: tuple[Literal["k", "v"], ...]
    kind: Literal["weight_scale", "input_scale"]
    value: float


@dataclass(frozen=True, slots=True)
class UnmatchedName:
    """A name that looks like a KV-cache scale and that no rule turns into one."""

    name: str
    file: str
    reason: str
    why: WhyUnmatched = "unknown-name"


@dataclass(frozen=True, slots=True)
class ModuleScales:
    """Scales of a module that is not the language model's stack of layers."""

    kind: ModuleKind
    prefix: str
    """Of the tensors' names, up to the layer number."""
    scales: tuple[StoredScale, ...]


@dataclass(frozen=True, slots=True)
class DeclaredScheme:
    """What the checkpoint's configuration says about its KV cache. None: it does not say."""

    quant_method: str | None = None
    has_kv_scheme: bool = False
    num_bits: int | None = None
    type: str | None = None
    strategy: str | None = None
    dynamic: bool | None = None
    symmetric: bool | None = None
    observer: str | None = None
    algorithm: str | None = None
    """Such as `FP8` or `NVFP4`, where the format names an algorithm instead of a scheme."""
    model_type: str | None = None
    """In the JSON files of scales."""
    number_format: NumberFormat | None = None
    """What the scales were made for; None: it is not said, and the names are those of FP8 scales."""
    format_of_layer: Mapping[int, NumberFormat] = field(default_factory=dict)
    """Of `mixed`: the layers that the configuration lists."""
    refused: str | None = None
    """Why vLLM does not start with this configuration, where its own reading of it fails."""
    refused_by_method: str | None = None
    """Why the KV-cache method of its attention layers refuses it; MLA's layers have none."""
    without_method: str | None = None
    """Why vLLM gives its attention layers no KV-cache method, so that 1.0 is used."""


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """Shape of the model as the artifact's own configuration gives it. None: unknown."""

    num_layers: int | None = None
    num_kv_heads: int | None = None
    num_attention_heads: int | None = None
    head_dim: int | None = None
    cache: CacheLayers = field(default_factory=CacheLayers)
    model_type: str | None = None
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScaleArtifact:
    """Scales as shipped, before any loader has touched them."""

    path: Path
    format: Format
    granularity: Granularity
    scales: tuple[StoredScale, ...]
    unmatched: tuple[UnmatchedName, ...] = ()
    other_modules: tuple[ModuleScales, ...] = ()
    scheme: DeclaredScheme = DeclaredScheme()
    model: DeclaredModel = DeclaredModel()
    num_ranks: int | None = None
    """Tensor-parallel ranks, in formats that store one scale per rank; None elsewhere."""
    projections: tuple[ProjectionScale, ...] = ()
    """Scales of the projections that make K and V, where the checkpoint has quantized weights."""
    manifest: dict[str, Any] | None = field(default=None, repr=False)
    """Content of the `kvtrace.json` beside the scales: how they were made, and on what."""

    @property
    def name(self) -> str:
        """Return the file's or directory's name."""
        return self.path.name or str(self.path)

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that have a K or V scale, sorted."""
        return tuple(sorted({s.layer for s in self.scales if s.tensor in ("k", "v", "kv")}))

    @property
    def sha256(self) -> str:
        """Return the hex SHA-256 over the scale tensors as read; how they are split into files is left
        out.
        """
        return scales_sha256((*self.scales, *(one for module in self.other_modules for one in module.scales)))

    @property
    def number_format(self) -> NumberFormat | None:
        """Return what the scales were made for; None where there are none."""
        if self.scheme.number_format is not None:
            return self.scheme.number_format
        return "fp8" if self.scales else None

    def format_of(self, layer: int) -> NumberFormat:
        """Return the number format of one layer's cache; `none`: left in the model's dtype."""
        if self.number_format == "mixed":
            return self.scheme.format_of_layer.get(layer, "none")
        return self.number_format or "fp8"

    def stored(self, layer: int, tensor: ScaleTensor) -> tuple[StoredScale, ...]:
        """Return the scales of one layer and tensor: none, one, or one per rank."""
        return tuple(s for s in self.scales if s.layer == layer and s.tensor == tensor)


def scales_sha256(scales: Iterable[StoredScale]) -> str:
    """Return the hex SHA-256 over key, rank, dtype, shape and values (float64) of each scale, in key
    order.
    """
    digest = hashlib.sha256()
    for scale in sorted(scales, key=lambda s: (-1 if s.rank is None else s.rank, s.key)):
        digest.update(f"{scale.rank}\0{scale.key}\0{scale.dtype}\0{list(scale.shape)}\0".encode())
        digest.update(struct.pack(f"<{len(scale.values)}d", *scale.values))
    return digest.hexdigest()
