"""ModelOpt: `…self_attn.k_proj.k_scale` in float32, amax / 448; Megatron exports clamp it to at least 1.0.

`hf_quant_config.json` names the algorithm (`FP8`, `NVFP4`), config.json may repeat it as `kv_cache_scheme`.
With NVFP4 the stored number is still amax / 448: block scales exist only at run time. Source: ModelOpt 0.47.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.scales.formats.compressed_tensors import declared_scheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors, text_of
from kvtrace.scales.names import vllm_tensor

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.source import ArtifactSource

_METHOD = "modelopt"


def recognizes(source: ArtifactSource) -> bool:
    """By the declared method or by `hf_quant_config.json`."""
    return (source.quant_method or "").startswith(_METHOD) or source.hf_quant_config is not None


def recognizes_nvfp4(source: ArtifactSource) -> bool:
    """As ModelOpt, where the KV cache's algorithm is NVFP4."""
    return recognizes(source) and (_algorithm(source) or "").upper() == "NVFP4"


def recognizes_megatron(source: ArtifactSource) -> bool:
    """As ModelOpt, with the names of its Megatron exporter."""
    names = [ref.name for ref in source.tensors if _rule(ref.name) in ("k", "v")]
    return recognizes(source) and bool(names) and all(_is_megatron(name) for name in names)


def read(source: ArtifactSource) -> Reading:
    """Read the scales; the scheme's algorithm comes from whichever file names it."""
    scales, unmatched = read_tensors(source, _rule)
    algorithm = _algorithm(source)
    scheme = replace(declared_scheme(source), quant_method=_METHOD, algorithm=algorithm)
    return Reading(
        scales, unmatched, replace(scheme, has_kv_scheme=scheme.has_kv_scheme or algorithm is not None)
    )


def _algorithm(source: ArtifactSource) -> str | None:
    inner = (source.hf_quant_config or {}).get("quantization")
    for value in (
        inner.get("kv_cache_quant_algo") if isinstance(inner, dict) else None,
        source.quantization.get("kv_cache_scheme"),
        source.quantization.get("kv_cache_quant_algo"),
    ):
        if text_of(value):
            return text_of(value)
    return None


def _is_megatron(name: str) -> bool:
    return ".mixer." in name or name.endswith((".self_attn.k_scale", ".self_attn.v_scale"))


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, _METHOD)


HF = Format("modelopt", recognizes, read, quant_method=_METHOD)
NVFP4 = Format(
    "modelopt-nvfp4",
    recognizes_nvfp4,
    read,
    quant_method=_METHOD,
    remark="an NVFP4 cache has block scales made at run time; FP8 is evaluated here",
)
MEGATRON = Format("modelopt-megatron", recognizes_megatron, read, quant_method=_METHOD)
