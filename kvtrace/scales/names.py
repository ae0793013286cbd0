"""Tensor name → layer and tensor, by the rules that loaders use.

Source of the rules: vLLM 0.32, the mapping of KV-cache scale names in its weight loader, the suffix maps of
its fp8 and Quark methods, and its map of Mistral's native names (`models/mistral.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor

MAX_LAYER: Final = 9_999
_MERGED: Final = re.compile(r"\.kv_scale$")
_PROJECTION: Final = re.compile(r"\.self_attn\.(?:[kv]|qkv|qkqkv)_proj\.([kv])_scale$")
_MIXER: Final = re.compile(r"\.mixer\.[kv]_proj\.([kv])_scale$")
_QUERY: Final = re.compile(r"\.self_attn\.q\.scale$")
_CACHE: Final = re.compile(r"\.self_attn\.([kv])_cache\.scale$")
_BARE: Final = re.compile(r"(?<!_proj)(?<!_cache)(?<!_norm)(?<!mlp)\.([qkv])_scale$")
_OUTPUT: Final = re.compile(r"\.([qkv])_proj\.output_scale$")
_PROB_OUTPUT: Final = re.compile(r"\.self_attn\.prob_output_scale$")
_PROJECTION_SCALE: Final = re.compile(r"\.(k|v|qkv)_proj\.(weight_scale|input_scale)$")
_ZERO_POINT: Final = re.compile(r"\.[qkv]_zero_point$")
_OF_WEIGHTS: Final = re.compile(
    r"(?:weight|input|activation|act|router|routed|expert|embed|layer|gate|up|down|q?scale_(?:act|weight))[a-z_]*"
    r"(?:scal[a-z_0-9]*)?$"
)
_KV: Final = r"(?:q|k|v|kv|qkv|key|value|query|output|cache|attn|prob)"
_OF_KV: Final = re.compile(
    rf"(?:^|_){_KV}(?:_[a-z_]*)?_(?:scal(?:e|es|ing)|amax|zero_point)[a-z_0-9]*$|^(?:k|v|kv)scales?$",
    re.IGNORECASE,
)
_BARE_SCALE: Final = re.compile(r"_?(?:scale|scales|amax|qscale_act)$", re.IGNORECASE)
_KV_MODULE: Final = re.compile(
    rf"{_KV}(?:_cache|_bmm_quantizer|_quantizer|_fake_quantizer|_observer)?$", re.IGNORECASE
)
_PER_CHANNEL: Final = re.compile(r"\.[kv]_proj\.kv_cache_(?:scale|offset)$")
_FAKE_QUANTIZER: Final = re.compile(r"\.attention\.(kv|q|k|v)_fake_quantizer\.qscale_act$")
_OF_A_PARAMETER: Final = re.compile(r"\.(?:weight|data|value|[0-9]+)$")
_METHODS_WITH_OUTPUT_SCALE: Final = ("fp8", "quark")


def layer_of(name: str) -> int | None:
    """Return the layer index: the only all-digit part of the name. None: there is none, or several.

    >>> layer_of("model.layers.12.self_attn.k_scale"), layer_of("layers.1.experts.2.k_scale")
    (12, None)
    """
    numbers = [part for part in name.split(".") if part.isascii() and part.isdigit()]
    if len(numbers) != 1 or len(numbers[0]) > len(str(MAX_LAYER)):
        return None
    return int(numbers[0])


def vllm_tensor(name: str, quant_method: str | None) -> ScaleTensor | None:
    """Return the scale that vLLM loads this tensor as; `kv` is loaded as K and copied to V. None: dropped
    silently.

    >>> vllm_tensor("model.layers.0.self_attn.k_proj.k_scale", "modelopt")
    'k'
    >>> vllm_tensor("model.layers.0.self_attn.k_proj.output_scale", "compressed-tensors") is None
    True
    """
    if _MERGED.search(name):
        return "kv"
    if match := _FAKE_QUANTIZER.search(name):
        return "kv" if match[1] == "kv" else _tensor(match[1])
    for pattern in (_PROJECTION, _MIXER, _CACHE, _BARE):
        if match := pattern.search(name):
            return _tensor(match[1])
    if _QUERY.search(name):
        return "q"
    return output_tensor(name) if quant_method in _METHODS_WITH_OUTPUT_SCALE else None


def output_tensor(name: str) -> ScaleTensor | None:
    """Return the tensor of a `*_proj.output_scale` or `prob_output_scale`, else None."""
    if match := _OUTPUT.search(name):
        return _tensor(match[1])
    return "prob" if _PROB_OUTPUT.search(name) else None


def is_zero_point(name: str) -> bool:
    """Whether this is a zero point: loaders read and ignore it, since only symmetric scales are supported."""
    return _ZERO_POINT.search(name) is not None


def projection_scale(
    name: str,
) -> tuple[tuple[Literal["k", "v"], ...], Literal["weight_scale", "input_scale"]] | None:
    """Return which of K and V a projection makes and which of its scales this is; None: it is none.

    >>> projection_scale("model.layers.0.self_attn.k_proj.weight_scale")
    (('k',), 'weight_scale')
    """
    match = _PROJECTION_SCALE.search(name)
    if match is None:
        return None
    tensors: tuple[Literal["k", "v"], ...] = (
        ("k", "v") if match[1] == "qkv" else ("k",) if match[1] == "k" else ("v",)
    )
    return tensors, "weight_scale" if match[2] == "weight_scale" else "input_scale"


def resembles_kv_scale(name: str) -> bool:
    """Whether a person would take the name for a KV-cache scale (weight and input scales are not).

    >>> resembles_kv_scale("layers.0.self_attn.key_scale"), resembles_kv_scale("layers.0.k_proj.weight_scale")
    (True, False)
    >>> resembles_kv_scale("layers.0.attn.k_scale_0"), resembles_kv_scale("layers.0.attn.v_scale.weight")
    (True, True)
    >>> resembles_kv_scale("layers.0.attn.wkv.scale"), resembles_kv_scale("layers.0.attention.wk.qscale_act")
    (False, False)
    """
    parts = _OF_A_PARAMETER.sub("", name).split(".")
    last = parts[-1]
    if _BARE_SCALE.match(last):  # it is its module's, so the module must be of the cache
        return len(parts) > 1 and _KV_MODULE.match(parts[-2]) is not None
    return _OF_WEIGHTS.match(last) is None and _OF_KV.search(last) is not None


def is_fake_quantizer(name: str) -> bool:
    """Whether this is a KV-cache scale by Mistral's own names."""
    return _FAKE_QUANTIZER.search(name) is not None


def is_per_channel(name: str) -> bool:
    """Whether this is a scale or offset per channel of an INT8 cache (msModelSlim's C8, for vllm-ascend)."""
    return _PER_CHANNEL.search(name) is not None


def _tensor(letter: str) -> ScaleTensor:
    return "k" if letter == "k" else "v" if letter == "v" else "q"
