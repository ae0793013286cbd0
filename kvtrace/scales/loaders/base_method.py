"""vLLM's base method for KV-cache scales (fp8, ModelOpt, Quark): one number a tensor, −1 where none was
loaded.

Source: vLLM 0.32, `BaseKVCacheMethod`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, loaded
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
    k_origin, v_origin = _origin(stored["k"]), _origin(stored["v"])
    if k < 0 and v < 0:
        what = f"K's scale is {_shown(k)} and V's is {_shown(v)}, which counts as missing"
        found.add(
            "silent-default", f"{what}: {setup.loader.title} uses 1.0 after one warning for the whole model"
        )
        k, v, k_origin, v_origin, factor = 1.0, 1.0, "unit: none loaded", "unit: none loaded", 1.0
    elif not (k > 0 and v > 0):
        if not k > 0:
            found.add(
                "crash",
                f"K's scale is {_shown(k)} and V's is {_shown(v)}: {setup.loader.title} dies on a bare "
                "assertion",
            )
        elif stored["k"] is None or not stored["k"].key.endswith(".kv_scale"):
            found.add(
                "duplicated", f"V's scale is {_shown(v)}: {setup.loader.title} uses K's for V without a word"
            )
        v, v_origin = k, k_origin
    found.fill("k", k * factor, k_origin, layout.num_heads)
    found.fill("v", v * factor, v_origin, layout.num_heads)
    if q > 0:
        found.fill("q", q * (2.0 if setup.fnuz else 1.0), _origin(stored["q"]), layout.num_heads)
    else:
        found.fill(
            "q", 1.0, "unit: no usable q_scale (the log says K's is used; it is not)", layout.num_heads
        )
    return found


def _value(scale: StoredScale | None) -> float:
    return _MISSING if scale is None else scale.values[0]


def _origin(scale: StoredScale | None) -> str:
    return "unit: none loaded" if scale is None else scale.origin


def _shown(value: float) -> str:
    return "missing" if value == _MISSING else f"{value:g}"
