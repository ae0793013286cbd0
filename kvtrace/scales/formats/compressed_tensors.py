"""compressed-tensors, as llm-compressor writes it: `…self_attn.{k,v}_scale`, one value or one per head.

`quantization_config.kv_cache_scheme` in config.json declares it; `strategy` is `tensor` or `attn_head`.
Checkpoints of the first generation hold `…{k,v}_proj.output_scale` instead, which loaders of today no longer
map.
Source: compressed-tensors 0.20, llm-compressor 0.14.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.scales.artifact import DeclaredScheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors, text_of
from kvtrace.scales.names import output_tensor, vllm_tensor
from kvtrace.scales.number_format import scheme_format

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.source import ArtifactSource

METHOD: Final = "compressed-tensors"


def recognizes(source: ArtifactSource) -> bool:
    """By the declared method and a scheme; without a configuration, by the names."""
    has_scales = any(_rule(ref.name) for ref in source.tensors)
    if source.quant_method == METHOD:
        return has_scales or isinstance(source.quantization.get("kv_cache_scheme"), dict)
    return has_scales


def recognizes_old(source: ArtifactSource) -> bool:
    """By the declared method and `output_scale` names, without any of the newer ones."""
    return (
        source.quant_method in (METHOD, None)
        and any(output_tensor(ref.name) in ("k", "v") for ref in source.tensors)
        and not any(vllm_tensor(ref.name, METHOD) for ref in source.tensors)
    )


def read(source: ArtifactSource) -> Reading:
    """Read both generations' names."""
    return replace(read_tensors(source, _rule), scheme=declared_scheme(source))


def declared_scheme(source: ArtifactSource) -> DeclaredScheme:
    """Return `kv_cache_scheme` with unknown values left out."""
    scheme = source.quantization.get("kv_cache_scheme")
    if not isinstance(scheme, dict):
        return DeclaredScheme(quant_method=source.quant_method, algorithm=text_of(scheme))
    bits, dynamic, symmetric = scheme.get("num_bits"), scheme.get("dynamic"), scheme.get("symmetric")
    return DeclaredScheme(
        quant_method=source.quant_method,
        has_kv_scheme=True,
        num_bits=bits if type(bits) is int else None,
        type=text_of(scheme.get("type")),
        strategy=text_of(scheme.get("strategy")),
        dynamic=dynamic if isinstance(dynamic, bool) else None,
        symmetric=symmetric if isinstance(symmetric, bool) else None,
        observer=text_of(scheme.get("observer")),
        number_format=scheme_format(bits if type(bits) is int else None, text_of(scheme.get("type"))),
    )


def is_kv_scale(name: str) -> bool:
    """Whether a tensor is a KV-cache scale by any generation's name."""
    return _rule(name) is not None


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, METHOD) or output_tensor(name)


FORMAT = Format("compressed-tensors", recognizes, read, quant_method=METHOD)
OLD = Format("compressed-tensors-old", recognizes_old, read, quant_method=METHOD)
