"""A share, or SQNR, against position: prefill and decode, K and V, with intervals where there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.report.charts.axes import (
    UNTOLD,
    Spec,
    crowded_axis,
    layer,
    layered,
    nominal,
    ordinal,
    quantity,
    share_axis,
    tensor_colour,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERIES: Final = ["K prefill", "V prefill", "K decode", "V decode"]
_PHASES: Final = ["prefill", "decode"]
_BY_ORDER: Final = {"field": "order", "op": "min"}
_EDGES: Final = ((0, "top", 3), (1, "bottom", -3))


def by_position(*, title: str, floor: float | None) -> Spec:
    """Return the chart. floor: where a share of 0 is drawn; None: the values are dB.

    `strata`: position (where it starts), order, tensor (K, V), phase, series (tensor and phase), value,
    shown_low and shown_high (NULL: no interval), text. Values on the zero line are given as `floor`.
    `calibrated`: where the calibrated length stands: position, order, edge (0: at its start, 1: at its end),
    text; no row: not known.
    """
    axis = _decibels(title) if floor is None else share_axis(floor, title)
    base = {
        "x": ordinal(
            "position",
            sort=_BY_ORDER,
            title="position, from",
            axis=crowded_axis(),
            scale={"paddingInner": 0.25},
        ),
        "xOffset": nominal("series", scale={"domain": _SERIES}),
        "y": quantity("value", **axis),
        "color": tensor_colour(),
        **told(),
    }
    intervals = layer(
        "strata",
        {"type": "rule", "strokeWidth": 5, "opacity": 0.28, "aria": False},
        base | UNTOLD | {"y": quantity("shown_low", **axis), "y2": {"field": "shown_high"}},
        where="isValid(datum.shown_low)",
    )
    dashes = {"domain": _PHASES, "range": [[1, 0], [4, 3]]}
    lines = layer(
        "strata",
        {"type": "line", "strokeWidth": 1.5, "opacity": 0.8, "aria": False},
        base
        | UNTOLD
        | {"strokeDash": nominal("phase", scale=dashes, legend=None), "detail": nominal("series")},
    )
    shapes = {"domain": _PHASES, "range": ["circle", "triangle-up"]}
    points = layer(
        "strata",
        {"type": "point", "filled": True, "size": 55, "opacity": 1},
        base | {"shape": nominal("phase", scale=shapes, legend=None)},
        name="points",
    )
    return layered(*_calibrated(), *([] if floor is None else [intervals]), lines, points)


def _decibels(title: str) -> Spec:
    return {
        "scale": {"zero": False, "nice": True},
        "axis": {"title": title, "domain": False, "ticks": False, "tickCount": 4, "format": "~g"},
    }


def _calibrated() -> Iterator[Spec]:
    for edge, baseline, offset in _EDGES:
        x = ordinal("position", sort=_BY_ORDER, bandPosition=edge)
        here = f"datum.edge == {edge}"
        rule = {"type": "rule", "style": "guide", "strokeWidth": 1.5, "strokeDash": [2, 2]}
        yield layer("calibrated", rule, {"x": x, "description": nominal("text")}, where=here)
        # Upright along the rule, inside the axis: the points of one octave at most lie behind it.
        upright = {"type": "text", "angle": 270, "align": "center", "fontSize": 11, "aria": False}
        yield layer(
            "calibrated",
            upright | {"baseline": baseline, "dy": offset},
            {"x": x, "y": {"value": {"expr": "height / 2"}}, "text": nominal("text")},
            where=here,
        )
