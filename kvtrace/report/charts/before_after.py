"""Two candidates, head by head: a point above the diagonal is a head that got worse."""

from __future__ import annotations

import altair as alt

from kvtrace.report.charts.axes import Spec, layered, share_axis, tensor_colour


def before_after(*, floor: float | None, low: float, high: float) -> Spec:
    """Return the chart. floor: where a share of 0 is drawn; None: dB. low, high: ends of both axes.

    `heads`: before, after, tensor, is_worse, is_chosen, text. `diagonal`: two points at, of both axes.
    """
    if floor is None:
        scale = alt.Scale(domain=[low, high], nice=False)
        axes = [
            alt.Axis(title=f"SQNR, dB, {side}", format=".0f", tickCount=6) for side in ("before", "after")
        ]
    else:
        scale, before = share_axis(floor, "before", top=high)
        axes = [before, share_axis(floor, "after", top=high)[1]]
    x = alt.X("before:Q", scale=scale, axis=axes[0])
    y = alt.Y("after:Q", scale=scale, axis=axes[1])
    diagonal = (
        alt.Chart(alt.NamedData("diagonal"))
        .mark_line(style="guide", strokeDash=[5, 4], aria=False)
        .encode(x=alt.X("at:Q", scale=scale, axis=axes[0]), y=alt.Y("at:Q", scale=scale, axis=axes[1]))
    )
    heads = alt.Chart(alt.NamedData("heads"))
    points = heads.mark_point(filled=True, cursor="pointer").encode(
        x=x,
        y=y,
        color=tensor_colour(legend=True),
        shape=alt.Shape(
            "is_worse:N",
            scale=alt.Scale(domain=[False, True], range=["circle", "triangle-up"]),
            legend=None,
        ),
        size=alt.condition("datum.is_worse", alt.value(70), alt.value(28)),
        opacity=alt.condition("datum.is_worse", alt.value(0.95), alt.value(0.5)),
        description="text:N",
        tooltip="text:N",
    )
    chosen = (
        heads.mark_point(style="ink", size=260, strokeWidth=2.5, aria=False)
        .transform_filter("datum.is_chosen")
        .encode(x=x, y=y)
        .properties(name="chosen")
    )
    return layered(diagonal, points.properties(name="heads"), chosen)
