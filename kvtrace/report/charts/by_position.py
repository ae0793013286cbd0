"""A share, or SQNR, against position: prefill and decode, K and V, with intervals where there are any."""

from __future__ import annotations

from typing import Final

import altair as alt

from kvtrace.report.charts.axes import Spec, layered, share_axis, tensor_colour

STRATA: Final = "strata"


def by_position(*, title: str, floor: float | None) -> Spec:
    """Return the chart. floor: where a share of 0 is drawn; None: the values are dB.

    `strata`: position (where it starts), order, tensor (K, V), phase, series (tensor and phase), value,
    shown_low and shown_high (NULL: no interval), text. Values on the zero line are given as `floor`.
    """
    if floor is None:
        scale = alt.Scale(zero=False, nice=True)
        axis = alt.Axis(title=title, domain=False, ticks=False, tickCount=4, format="~g")
    else:
        scale, axis = share_axis(floor, title)
    series = ["K prefill", "V prefill", "K decode", "V decode"]
    base = alt.Chart(alt.NamedData(STRATA)).encode(
        x=alt.X(
            "position:O",
            sort=alt.EncodingSortField("order"),
            title="position, from",
            axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap="parity", labelSeparation=6),
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
        return layered(lines, points)
    return layered(intervals.transform_filter("isValid(datum.shown_low)"), lines, points)
