"""How wide one head's vectors are along the positions of one workload, against what is covered."""

from __future__ import annotations

import altair as alt

from kvtrace.report.charts.axes import Spec, layered


def absmax_bands() -> Spec:
    """Return the chart of one workload.

    `bands`: position (where it starts), order, p50, p90, p99, max, tensor, text. `covered`: amax, a line.
    `extent`: low, high of all workloads, which gives all their charts one scale.
    """
    scale = alt.Scale(type="log", base=2, nice=False)
    axis = alt.Axis(title="largest |x|", domain=False, ticks=False, format="~g", tickCount=5)
    x = alt.X(
        "position:O",
        sort=alt.EncodingSortField("order"),
        title=None,
        axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap="parity", labelSeparation=6),
    )
    base = alt.Chart(alt.NamedData("bands")).encode(
        x=x,
        color=alt.Color("tensor:N", scale=alt.Scale(domain=["K", "V"], range="category"), legend=None),
    )
    outer = base.mark_bar(opacity=0.25, aria=False, width=alt.RelativeBandSize(0.8)).encode(
        y=alt.Y("p50:Q", scale=scale, axis=axis), y2="p99:Q"
    )
    inner = base.mark_bar(opacity=0.55, aria=False, width=alt.RelativeBandSize(0.8)).encode(
        y=alt.Y("p50:Q", scale=scale, axis=axis), y2="p90:Q"
    )
    widest = base.mark_point(filled=True, size=50, opacity=1).encode(
        y=alt.Y("max:Q", scale=scale, axis=axis), description="text:N", tooltip="text:N"
    )
    covered = (
        alt.Chart(alt.NamedData("covered"))
        .mark_rule(style="ink", strokeWidth=2, strokeDash=[6, 3], aria=False)
        .encode(y=alt.Y("amax:Q", scale=scale, axis=axis))
    )
    extent = (
        alt.Chart(alt.NamedData("extent"))
        .mark_rule(opacity=0, aria=False)
        .encode(y=alt.Y("low:Q", scale=scale, axis=axis), y2="high:Q")
    )
    return layered(extent, outer, inner, widest.properties(name="widest"), covered)
