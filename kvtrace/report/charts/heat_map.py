"""Layer × head: where in the model values are clipped. One map for K and one for V."""

from __future__ import annotations

from typing import Final

import altair as alt

from kvtrace.report.charts.axes import SHARE_LABEL, Spec, crowded_axis, layered

_HATCH: Final = "M-1,0L0,-1M-1,1L1,-1M0,1L1,0"
"""Three strokes: Vega has no fill patterns."""


def heat_map(*, low: float, high: float, decibels: bool = False) -> Spec:
    """Return the map with layers along x and heads along y.

    `cells`: layer, kv_head, value (NaN-free), is_calm (nothing to see), is_few (too few requests), text.
    `chosen`: layer, kv_head of one cell. low, high: the smallest and largest value of all candidates, so that
    one colour means one number whatever is chosen.
    """
    scale = (
        alt.Scale(domain=[low, high], range="heatmap", reverse=True, clamp=True, nice=False)
        if decibels
        else alt.Scale(type="log", domain=[low, high], range="heatmap", clamp=True, nice=False)
    )
    legend = alt.Legend(
        title=None,
        orient="top",
        direction="horizontal",
        gradientLength=340,
        gradientThickness=10,
        tickCount=5,
        labelOverlap=True,
        labelLimit=60,
        labelExpr="format(datum.value, '.0f') + ' dB'" if decibels else SHARE_LABEL,
    )
    x = alt.X("layer:O", title="layer", axis=crowded_axis())
    y = alt.Y("kv_head:O", title="KV head", axis=alt.Axis(ticks=False))
    cells = alt.Chart(alt.NamedData("cells")).encode(x=x, y=y, description="text:N", tooltip="text:N")
    coloured = (
        cells.mark_rect(cursor="pointer")
        .transform_filter("!datum.is_calm")
        .encode(color=alt.Color("value:Q", scale=scale, legend=legend))
        .properties(name="cells")
    )
    calm = (
        cells.mark_rect(cursor="pointer", style="calm")
        .transform_filter("datum.is_calm")
        .properties(name="calm")
    )
    few = (
        cells.mark_point(
            shape=_HATCH, size=90, strokeWidth=1.2, style="hatch", filled=False, opacity=0.9, aria=False
        )
        .transform_filter("datum.is_few")
        .encode(description=alt.value(""))
        .properties(name="few")
    )
    chosen = (
        alt.Chart(alt.NamedData("chosen"))
        .mark_rect(style="chosen", strokeWidth=3, fillOpacity=0, aria=False)
        .encode(x=x, y=y)
        .properties(name="chosen")
    )
    return layered(calm, coloured, few, chosen)
