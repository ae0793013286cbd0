"""Quark: `…{q,k,v}_proj.output_scale` and `prob_output_scale`; K and V often merged to their maximum.

Calibrated on the projections' outputs, so on keys before RoPE. Source: Quark 0.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.artifact import DeclaredScheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors
from kvtrace.scales.names import vllm_tensor

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.source import ArtifactSource

_METHOD = "quark"


def recognizes(source: ArtifactSource) -> bool:
    """By the declared method."""
    return source.quant_method == _METHOD


def read(source: ArtifactSource) -> Reading:
    """Read the scales; the scheme is taken from the key projections' output quantization."""
    scales, unmatched = read_tensors(source, _rule)
    layers = source.quantization.get("layer_quant_config")
    output = None
    for pattern, config in (layers if isinstance(layers, dict) else {}).items():
        if pattern.endswith("k_proj") and isinstance(config, dict):
            output = config.get("output_tensors")
    if not isinstance(output, dict):
        return Reading(scales, unmatched, DeclaredScheme(quant_method=_METHOD))
    dynamic, dtype = output.get("is_dynamic"), output.get("dtype")
    scheme = DeclaredScheme(
        quant_method=_METHOD,
        has_kv_scheme=True,
        dynamic=dynamic if isinstance(dynamic, bool) else None,
        algorithm=dtype if isinstance(dtype, str) else None,
    )
    return Reading(scales, unmatched, scheme)


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, _METHOD)


FORMAT = Format("quark", recognizes, read, quant_method=_METHOD, before_rope=True)
