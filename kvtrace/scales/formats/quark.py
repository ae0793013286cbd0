"""Quark: `…{q,k,v}_proj.output_scale` and `prob_output_scale`; K and V often merged to their maximum.

Calibrated on the projections' outputs, so on keys before RoPE. Source: Quark 0.13.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from kvtrace.plain_text import plain
from kvtrace.scales.artifact import DeclaredScheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors, text_of
from kvtrace.scales.names import vllm_tensor
from kvtrace.scales.number_format import named_format

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.source import ArtifactSource

_METHOD = "quark"


def recognizes(source: ArtifactSource) -> bool:
    """By the declared method."""
    return source.quant_method == _METHOD


def read(source: ArtifactSource) -> Reading:
    """Read the scales; the scheme is that of the layers that `kv_cache_group` names."""
    reading = read_tensors(source, _rule)
    outputs, refused = _group_outputs(source.quantization)
    output = outputs[0] if outputs else None
    if output is None:
        return replace(reading, scheme=DeclaredScheme(quant_method=_METHOD, refused=refused))
    dynamic, dtype, qscheme = output.get("is_dynamic"), text_of(output.get("dtype")), output.get("qscheme")
    refused_by_method = None
    if dtype != "fp8_e4m3" or qscheme != "per_tensor":
        refused_by_method = (
            f"the KV cache's output_tensors are {plain(str(dtype), 40)}, {plain(str(qscheme), 40)}; "
            "it takes fp8_e4m3, per_tensor alone"
        )
    scheme = DeclaredScheme(
        quant_method=_METHOD,
        has_kv_scheme=True,
        dynamic=dynamic if isinstance(dynamic, bool) else None,
        algorithm=dtype,
        number_format=named_format(dtype) if dtype else None,
        refused=refused,
        refused_by_method=refused_by_method,
    )
    return replace(reading, scheme=scheme)


def _group_outputs(quantization: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Return the output quantization of each layer pattern in the KV cache's group, and why vLLM refuses.

    Source: vLLM 0.32, `QuarkConfig.from_config`.
    """
    export, layers = quantization.get("export"), quantization.get("layer_quant_config")
    group = export.get("kv_cache_group") if isinstance(export, dict) else None
    if not isinstance(group, list) or not group:
        group = [name for name in layers if name.endswith("k_proj")] if isinstance(layers, dict) else []
        return _outputs(layers, group), None
    matched = _outputs(layers, group)
    if matched:
        same = all(one == matched[0] for one in matched)
        return matched, None if same else "the layers of its kv_cache_group are quantized differently"
    return [], "its kv_cache_group matches no entry of layer_quant_config with output_tensors"


def _outputs(layers: object, group: list[Any]) -> list[dict[str, Any]]:
    return [
        config["output_tensors"]
        for name, config in (layers if isinstance(layers, dict) else {}).items()
        if any(isinstance(pattern, str) and fnmatchcase(name, pattern) for pattern in group)
        and isinstance(config, dict)
        and isinstance(config.get("output_tensors"), dict)
    ]


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, _METHOD)


FORMAT = Format("quark", recognizes, read, quant_method=_METHOD, before_rope=True)
