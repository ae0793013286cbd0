"""One head over a range of scales: clipping against flushing, with every candidate where it stands."""

from __future__ import annotations

from typing import Final

import altair as alt

from kvtrace.report.charts.axes import Spec, layered, share_axis, tensor_colour

MEASURES: Final = ["values clipped", "values flushed to 0", "squared error / signal"]


def clip_flush(*, floor: float) -> Spec:
    """Return the chart. Shares of 0 are given as `floor`.

    `curve`: multiple (of the scale that just covers the head), measure (one of MEASURES), value, tensor.
    `marks`: candidate (label), is_current, multiple, measure, value, name_at (height of the name; NULL:
    none), text.
    """
    scale, axis = share_axis(floor, "share")
    x = alt.X(
        "multiple:Q",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        title="scale, in multiples of the one that just covers the head",
        axis=alt.Axis(
            values=[2.0**k for k in range(-16, 25, 2)],
            labelExpr="datum.value < 1 ? '1/' + format(1 / datum.value, 'd') : format(datum.value, ',d')",
            labelOverlap="parity",
            domain=False,
            ticks=False,
        ),
    )
    curve = (
        alt.Chart(alt.NamedData("curve"))
        .mark_line(strokeWidth=2, aria=False)
        .encode(
            x=x,
            y=alt.Y("value:Q", scale=scale, axis=axis),
            color=tensor_colour(),
            strokeDash=alt.StrokeDash(
                "measure:N", scale=alt.Scale(domain=MEASURES, range=[[1, 0], [6, 4], [1, 4]]), legend=None
            ),
        )
    )
    marks = alt.Chart(alt.NamedData("marks"))
    stands = marks.mark_rule(style="guide", aria=False).encode(
        x=x,
        opacity=alt.condition("datum.is_current", alt.value(1), alt.value(0.35)),
        strokeWidth=alt.condition("datum.is_current", alt.value(2), alt.value(1)),
    )
    points = marks.mark_point(style="ink", strokeWidth=2).encode(
        x=x,
        y=alt.Y("value:Q", scale=scale, axis=axis),
        shape=alt.Shape(
            "measure:N", scale=alt.Scale(domain=MEASURES, range=["cross", "diamond", "circle"]), legend=None
        ),
        size=alt.condition("datum.is_current", alt.value(160), alt.value(60)),
        opacity=alt.condition("datum.is_current", alt.value(1), alt.value(0.6)),
        description="text:N",
        tooltip="text:N",
    )
    names = (
        marks.mark_text(align="left", dx=6, limit=180, aria=False)
        .transform_filter("isValid(datum.name_at)")
        .encode(
            x=x,
            y=alt.Y("name_at:Q", scale=scale, axis=axis),
            text="candidate:N",
            opacity=alt.condition("datum.is_current", alt.value(1), alt.value(0.75)),
        )
    )
    return layered(curve, stands, points.properties(name="marks"), names)
