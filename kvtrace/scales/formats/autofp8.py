"""AutoFP8: first `…self_attn.kv_scale`, the larger of K's and V's; later `k_scale` and `v_scale`. float32
scalars.

The stored number is the reciprocal of 448 / amax rounded to the model's dtype, so it differs from amax / 448
by up to 0.4 %. Calibrated on keys before RoPE. Source: AutoFP8, and checkpoints with `quant_method` `fp8`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.scales.artifact import DeclaredScheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors
from kvtrace.scales.names import vllm_tensor

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.source import ArtifactSource

_METHOD = "fp8"


def recognizes_generation_1(source: ArtifactSource) -> bool:
    """By the merged name; no other format has it."""
    return source.quant_method in (_METHOD, None) and any(_rule(ref.name) == "kv" for ref in source.tensors)


def recognizes_generation_2(source: ArtifactSource) -> bool:
    """By the declared method and a static scheme or scales."""
    if source.quant_method != _METHOD:
        return False
    declares = source.quantization.get("kv_cache_scheme") is not None
    return declares or any(_rule(ref.name) for ref in source.tensors)


def read(source: ArtifactSource) -> Reading:
    """Read both generations' names."""
    reading = read_tensors(source, _rule)
    declared = source.quantization.get("kv_cache_scheme")
    scheme = DeclaredScheme(
        quant_method=_METHOD,
        has_kv_scheme=declared is not None,
        dynamic=declared != "static" if isinstance(declared, str) else None,
        algorithm=declared if isinstance(declared, str) else None,
    )
    return replace(reading, scheme=scheme)


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, _METHOD)


GENERATION_1 = Format("autofp8-kv", recognizes_generation_1, read, quant_method=_METHOD, before_rope=True)
GENERATION_2 = Format("autofp8", recognizes_generation_2, read, quant_method=_METHOD, before_rope=True)
