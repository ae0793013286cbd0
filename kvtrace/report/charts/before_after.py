"""Two candidates, head by head: a point above the diagonal is a head that got worse."""

from __future__ import annotations

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


def before_after(*, floor: float | None, low: float, high: float) -> Spec:
    """Return the chart. floor: where a share of 0 is drawn; None: dB. low, high: ends of both axes.

    `heads`: before, after, tensor, is_worse, is_chosen, text. `diagonal`: two points at, of both axes.
    """
    x, y = (
        _decibels(side, low, high) if floor is None else share_axis(floor, side, top=high)
        for side in ("before", "after")
    )
    diagonal = {"type": "line", "style": "guide", "strokeDash": [5, 4], "aria": False}
    place = {"x": quantity("before", **x), "y": quantity("after", **y)}
    shapes = {"domain": [False, True], "range": ["circle", "triangle-up"]}
    heads = place | {
        "color": tensor_colour(legend=True),
        "shape": nominal("is_worse", scale=shapes, legend=None),
        "size": if_else("datum.is_worse", 70, 28),
        "opacity": if_else("datum.is_worse", 0.95, 0.5),
        **told(),
    }
    chosen = {"type": "point", "style": "ink", "size": 260, "strokeWidth": 2.5, "aria": False}
    return layered(
        layer("diagonal", diagonal, {"x": quantity("at", **x), "y": quantity("at", **y)}),
        layer("heads", {"type": "point", "filled": True, "cursor": "pointer"}, heads, name="heads"),
        layer("heads", chosen, place, name="chosen", where="datum.is_chosen"),
    )


def _decibels(side: str, low: float, high: float) -> Spec:
    return {
        "scale": {"domain": [low, high], "nice": False},
        "axis": {"title": f"SQNR, dB, {side}", "format": ".0f", "tickCount": 6},
    }
