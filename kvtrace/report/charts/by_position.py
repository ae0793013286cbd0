"""A share, or SQNR, against position: prefill and decode, K and V, with intervals where there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import altair as alt

from kvtrace.report.charts.axes import Spec, crowded_axis, layered, share_axis, tensor_colour

if TYPE_CHECKING:
    from collections.abc import Iterator


def by_position(*, title: str, floor: float | None) -> Spec:
    """Return the chart. floor: where a share of 0 is drawn; None: the values are dB.

    `strata`: position (where it starts), order, tensor (K, V), phase, series (tensor and phase), value,
    shown_low and shown_high (NULL: no interval), text. Values on the zero line are given as `floor`.
    `calibrated`: where the calibrated length stands: position, order, edge (0: at its start, 1: at its end),
    text; no row: not known.
    """
    if floor is None:
        scale = alt.Scale(zero=False, nice=True)
        axis = alt.Axis(title=title, domain=False, ticks=False, tickCount=4, format="~g")
    else:
        scale, axis = share_axis(floor, title)
    series = ["K prefill", "V prefill", "K decode", "V decode"]
    base = alt.Chart(alt.NamedData("strata")).encode(
        x=alt.X(
            "position:O",
            sort=_BY_ORDER,
            title="position, from",
            axis=crowded_axis(),
            scale=alt.Scale(paddingInner=0.25),
        ),
        xOffset=alt.XOffset("series:N", scale=alt.Scale(domain=series)),
        y=alt.Y("value:Q", scale=scale, axis=axis),
        color=tensor_colour(),
        description="text:N",
        tooltip="text:N",
    )
    intervals = base.mark_rule(strokeWidth=5, opacity=0.28, aria=False).encode(
        y=alt.Y("shown_low:Q", scale=scale, axis=axis), y2="shown_high:Q", description=alt.value("")
    )
    lines = base.mark_line(strokeWidth=1.5, opacity=0.8, aria=False).encode(
        strokeDash=alt.StrokeDash(
            "phase:N", scale=alt.Scale(domain=["prefill", "decode"], range=[[1, 0], [4, 3]]), legend=None
        ),
        detail="series:N",
        description=alt.value(""),
    )
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        shape=alt.Shape(
            "phase:N",
            scale=alt.Scale(domain=["prefill", "decode"], range=["circle", "triangle-up"]),
            legend=None,
        )
    )
    points = points.properties(name="points")
    if floor is None:
        return layered(*_calibrated(), lines, points)
    return layered(*_calibrated(), intervals.transform_filter("isValid(datum.shown_low)"), lines, points)


_EDGES: Final[tuple[tuple[int, Literal["top", "bottom"], int], ...]] = ((0, "top", 3), (1, "bottom", -3))
_BY_ORDER: Final = alt.EncodingSortField("order", op="min")


def _calibrated() -> Iterator[alt.Chart]:
    base = alt.Chart(alt.NamedData("calibrated"))
    for edge, baseline, offset in _EDGES:
        x = alt.X("position:O", sort=_BY_ORDER, bandPosition=edge)
        at_edge = base.transform_filter(f"datum.edge == {edge}")
        yield at_edge.mark_rule(style="guide", strokeWidth=1.5, strokeDash=[2, 2]).encode(
            x=x, description="text:N"
        )
        # Upright along the rule, inside the axis: the points of one octave at most lie behind it.
        yield at_edge.mark_text(
            angle=270, align="center", baseline=baseline, dy=offset, fontSize=11, aria=False
        ).encode(x=x, y=alt.value(alt.expr("height / 2")), text="text:N")
