"""Scales by layer: the candidate's, those in effect, and the smallest that would cover the trace."""

from __future__ import annotations

from typing import Final

import altair as alt

from kvtrace.report.charts.axes import Spec, crowded_axis, layered

KINDS: Final = ["candidate", "in effect", "just covers"]


def scales_by_layer() -> Spec:
    """Return the chart of K or of V.

    `layers`: layer, kind (one of KINDS), low, high (over the heads of the layer), text.
    """
    scale = alt.Scale(type="log", base=2, nice=True)
    axis = alt.Axis(title="scale", format=".2~g", domain=False, ticks=False, tickCount=5)
    base = alt.Chart(alt.NamedData("layers")).encode(x=alt.X("layer:O", title="layer", axis=crowded_axis()))
    spread = base.mark_rule(style="guide", strokeWidth=3, opacity=0.6, aria=False).encode(
        y=alt.Y("low:Q", scale=scale, axis=axis), y2="high:Q"
    )
    points = base.mark_point(style="ink", size=60, strokeWidth=2).encode(
        y=alt.Y("high:Q", scale=scale, axis=axis),
        shape=alt.Shape(
            "kind:N",
            scale=alt.Scale(domain=KINDS, range=["stroke", "cross", "circle"]),
            legend=alt.Legend(title=None, orient="top", symbolStrokeColor="gray"),
        ),
        description="text:N",
        tooltip="text:N",
    )
    return layered(spread, points.properties(name="scales"))
