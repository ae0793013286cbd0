"""vLLM's base method for KV-cache scales (fp8, ModelOpt, Quark): one number a tensor, −1 where none was
loaded.

Source: vLLM 0.32, `BaseKVCacheMethod`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.loaders.contract import NONE_LOADED, HeadLayout, LayerScales, loaded
from kvtrace.scales.loaders.loader import SGLANG

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import LoaderSetup

_MISSING = -1.0


def serves(quant_method: str) -> bool:
    """Whether vLLM's method of that name loads its KV-cache scales so; ModelOpt has several."""
    return quant_method in ("fp8", "quark") or quant_method.startswith("modelopt")


def apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: LoaderSetup) -> LayerScales:
    """Return one layer's scales: both if both are > 0, 1.0 if both are missing, K's for V if only K is
    usable.
    """
    found = LayerScales(layer)
    stored = {tensor: loaded(artifact, layer, tensor) for tensor in ("k", "v", "q")}
    for tensor, scale in stored.items():
        if scale is not None and len(scale.values) != 1:
            found.add(
                "crash",
                f"the {tensor} scale has shape {list(scale.shape)}: this method takes one number, "
                f"and {setup.loader.title} stops loading with a ValueError",
            )
    k, v, q = (_value(stored[tensor]) for tensor in ("k", "v", "q"))
    if setup.loader is SGLANG:  # it takes a scale of 0 for a missing one
        k, v = (_MISSING if value == 0 else value for value in (k, v))
    factor = 2.0 if setup.fnuz else 1.0
    if k < 0 and v < 0:
        what = f"K's scale is {_shown(k)} and V's is {_shown(v)}, which counts as missing"
        found.add(
            "silent-default", f"{what}: {setup.loader.title} uses 1.0 after one warning for the whole model"
        )
        found.fill_default("k", NONE_LOADED, layout.num_heads)
        found.fill_default("v", NONE_LOADED, layout.num_heads)
    else:
        if not k > 0:
            found.add(
                "crash",
                f"K's scale is {_shown(k)} and V's is {_shown(v)}: {setup.loader.title} dies on a bare "
                "assertion",
            )
        elif not v > 0 and not (stored["k"] and stored["k"].key.endswith(".kv_scale")):
            found.add(
                "duplicated", f"V's scale is {_shown(v)}: {setup.loader.title} uses K's for V without a word"
            )
        of_v = ("v", v) if k > 0 and v > 0 else ("k", k)
        for tensor, (source, value) in (("k", ("k", k)), ("v", of_v)):
            found.fill(tensor, value * factor, stored[source], layout.num_heads)
    if q > 0:
        found.fill("q", q * factor, stored["q"], layout.num_heads)
    else:
        why = "no usable q_scale (the log says K's is used; it is not)"
        found.fill_default("q", why, layout.num_heads)
    return found


def _value(scale: StoredScale | None) -> float:
    return _MISSING if scale is None else scale.values[0]


def _shown(value: float) -> str:
    return "missing" if value == _MISSING else f"{value:g}"
