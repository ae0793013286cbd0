"""One head over a range of scales: clipping against flushing, with every candidate where it stands."""

from __future__ import annotations

from typing import Final

from kvtrace.report.charts.axes import (
    Spec,
    if_else,
    layer,
    layered,
    nominal,
    quantity,
    share_axis,
    tensor_colour,
    told,
)

MEASURES: Final = ["values clipped", "values flushed to 0", "squared error / signal"]
_MULTIPLES: Final = {
    "scale": {"type": "log", "base": 2, "nice": False, "padding": 12},
    "title": "scale, in multiples of the one that just covers the head",
    "axis": {
        "values": [2.0**k for k in range(-16, 25, 2)],
        "labelExpr": "datum.value < 1 ? '1/' + format(1 / datum.value, 'd') : format(datum.value, ',d')",
        "labelOverlap": "parity",
        "domain": False,
        "ticks": False,
    },
}


def clip_flush(*, floor: float) -> Spec:
    """Return the chart. Shares of 0 are given as `floor`.

    `curve`: multiple (of the scale that just covers the head), measure (one of MEASURES), value, tensor.
    `marks`: candidate (label), is_current, multiple, measure, value, name_at (height of the name; NULL:
    none), text.
    """
    share = share_axis(floor, "share")
    x = quantity("multiple", **_MULTIPLES)
    dashes = {"domain": MEASURES, "range": [[1, 0], [6, 4], [1, 4]]}
    curve = {
        "x": x,
        "y": quantity("value", **share),
        "color": tensor_colour(),
        "strokeDash": nominal("measure", scale=dashes, legend=None),
    }
    stands = {
        "x": x,
        "opacity": if_else("datum.is_current", 1, 0.35),
        "strokeWidth": if_else("datum.is_current", 2, 1),
    }
    shapes = {"domain": MEASURES, "range": ["cross", "diamond", "circle"]}
    points = {
        "x": x,
        "y": quantity("value", **share),
        "shape": nominal("measure", scale=shapes, legend=None),
        "size": if_else("datum.is_current", 160, 60),
        "opacity": if_else("datum.is_current", 1, 0.6),
        **told(),
    }
    names = {
        "x": x,
        "y": quantity("name_at", **share),
        "text": nominal("candidate"),
        "opacity": if_else("datum.is_current", 1, 0.75),
    }
    return layered(
        layer("curve", {"type": "line", "strokeWidth": 2, "aria": False}, curve),
        layer("marks", {"type": "rule", "style": "guide", "aria": False}, stands),
        layer("marks", {"type": "point", "style": "ink", "strokeWidth": 2}, points, name="marks"),
        layer(
            "marks",
            {"type": "text", "align": "left", "dx": 6, "limit": 180, "aria": False},
            names,
            where="isValid(datum.name_at)",
        ),
    )
