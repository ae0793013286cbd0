"""Mistral's own format: `layers.N.attention.{k,v,q}_fake_quantizer.qscale_act`, beside `params.json`.

vLLM takes it with --load-format mistral (or where it finds no other weights), and renames the scales as it
loads them. Source: vLLM 0.32, `MistralForCausalLM.mistral_mapping`, `transformers_utils/configs/mistral.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.scales.artifact import DeclaredScheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors
from kvtrace.scales.names import is_fake_quantizer, vllm_tensor

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.source import ArtifactSource

_METHOD = "fp8"


def recognizes(source: ArtifactSource) -> bool:
    """By the names; no other format has them."""
    return any(is_fake_quantizer(ref.name) for ref in source.tensors)


def read(source: ArtifactSource) -> Reading:
    """Read the scales of K, V and Q."""
    scheme = DeclaredScheme(quant_method=source.quant_method or _METHOD, has_kv_scheme=True)
    return replace(read_tensors(source, _rule), scheme=scheme)


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, _METHOD)


FORMAT = Format("mistral", recognizes, read, quant_method=_METHOD)
