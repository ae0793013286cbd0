"""Scales by layer: the candidate's, those in effect, and the smallest that would cover the trace."""

from __future__ import annotations

from typing import Final

from kvtrace.report.charts.axes import Spec, crowded_axis, layer, layered, nominal, ordinal, quantity, told

KINDS: Final = ["candidate", "in effect", "just covers"]
_SCALE: Final = {"type": "log", "base": 2, "nice": True}
_AXIS: Final = {"title": "scale", "format": ".2~g", "domain": False, "ticks": False, "tickCount": 5}


def scales_by_layer() -> Spec:
    """Return the chart of K or of V.

    `layers`: layer, kind (one of KINDS), low, high (over the heads of the layer), text.
    """
    x = ordinal("layer", title="layer", axis=crowded_axis())
    spread = {"type": "rule", "style": "guide", "strokeWidth": 3, "opacity": 0.6, "aria": False}
    kinds = nominal(
        "kind",
        scale={"domain": KINDS, "range": ["stroke", "cross", "circle"]},
        legend={"title": None, "orient": "top", "symbolStrokeColor": "gray"},
    )
    return layered(
        layer("layers", spread, {"x": x, "y": _of("low"), "y2": {"field": "high"}}),
        layer(
            "layers",
            {"type": "point", "style": "ink", "size": 60, "strokeWidth": 2},
            {"x": x, "y": _of("high"), "shape": kinds, **told()},
            name="scales",
        ),
    )


def _of(field: str) -> Spec:
    return quantity(field, scale=_SCALE, axis=_AXIS)
