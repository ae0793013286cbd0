"""How wide one head's vectors are along the positions of one workload, against what is covered."""

from __future__ import annotations

from typing import Any, Final

from kvtrace.report.charts.axes import (
    Spec,
    crowded_axis,
    layer,
    layered,
    ordinal,
    quantity,
    tensor_colour,
    told,
)

_SCALE: Final = {"type": "log", "base": 2, "nice": False}
_AXIS: Final = {"title": "largest |x|", "domain": False, "ticks": False, "format": "~g", "tickCount": 5}
_BAR: Final = {"type": "bar", "aria": False, "width": {"band": 0.8}}


def absmax_bands() -> Spec:
    """Return the chart of one workload.

    `bands`: position (where it starts), order, p50, p90, p99, max, tensor, text. `covered`: amax, a line.
    `extent`: low, high of all workloads, which gives all their charts one scale.
    """
    base = {
        "x": ordinal("position", sort={"field": "order"}, title=None, axis=crowded_axis()),
        "color": tensor_colour(),
    }
    covered = {"type": "rule", "style": "ink", "strokeWidth": 2, "strokeDash": [6, 3], "aria": False}
    return layered(
        layer("extent", {"type": "rule", "opacity": 0, "aria": False}, _from_to("low", "high")),
        layer("bands", _BAR | {"opacity": 0.25}, base | _from_to("p50", "p99")),
        layer("bands", _BAR | {"opacity": 0.55}, base | _from_to("p50", "p90")),
        layer(
            "bands",
            {"type": "point", "filled": True, "size": 50, "opacity": 1},
            base | {"y": _wide("max")} | told(),
            name="widest",
        ),
        layer("covered", covered, {"y": _wide("amax")}),
    )


def _wide(field: str) -> dict[str, Any]:
    return quantity(field, scale=_SCALE, axis=_AXIS)


def _from_to(low: str, high: str) -> Spec:
    return {"y": _wide(low), "y2": {"field": high}}
