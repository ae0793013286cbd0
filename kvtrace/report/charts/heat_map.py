"""Layer × head: how much each head loses, or how much of its range it uses. One map for K and one for V."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import altair as alt

from kvtrace.report.bins import BINS
from kvtrace.report.charts.axes import Spec, layered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.report.bins import Bin

_HATCH: Final = "M-1,0L0,-1M-1,1L1,-1M0,1L1,0"
"""Three strokes: Vega has no fill patterns."""
_ON: Final = {"onMiddle": "datum.letter == 'o'", "onStrong": "datum.letter == 'x' || datum.letter == '#'"}


def heat_map(
    bins: Sequence[Bin] = BINS, *, colours: Literal["ordinal", "ramp"] = "ordinal", alone: bool = False
) -> Spec:
    """Return the map with layers along x and heads along y.

    `cells`: layer, kv_head, letter (of a bin; "." is hollow), label (number in the cell; "": none), is_few
    (too few requests), text. `chosen`: layer, kv_head of one cell. colours: the config's range of the bins.
    alone: whether the map explains itself; the page does it once for both of its maps.
    """
    letters = [one.letter for one in bins]
    meanings = ", ".join(f"'{one.letter}': '{one.meaning}'" for one in bins)
    explained = alt.Legend(
        title=None, orient="top", direction="horizontal", labelExpr=f"({{{meanings}}})[datum.label]"
    )
    x = alt.X(
        "layer:O",
        title="layer" if alone else None,
        axis=alt.Axis(labelAngle=0, labelOverlap="parity", labelSeparation=6, ticks=False, domain=False),
    )
    y = alt.Y("kv_head:O", title="KV head" if alone else None, axis=alt.Axis(ticks=False, domain=False))
    cells = alt.Chart(alt.NamedData("cells")).encode(x=x, y=y, description="text:N", tooltip="text:N")
    coloured = (
        cells.mark_rect(cursor="pointer", style="cell", strokeWidth=1)
        .transform_filter("datum.letter != '.'")
        .encode(
            color=alt.Color(
                "letter:N",
                scale=alt.Scale(domain=letters, range=colours),
                legend=explained if alone else None,
            )
        )
        .properties(name="cells")
    )
    hollow = (
        cells.mark_rect(cursor="pointer", style="calm", strokeWidth=1)
        .transform_filter("datum.letter == '.'")
        .properties(name="hollow")
    )
    numbers = [
        cells.mark_text(style=style, fontSize=10.5, aria=False)
        .transform_filter(f"datum.label != '' && ({condition})")
        .encode(text="label:N", description=alt.value(""))
        .properties(name=style)
        for style, condition in _ON.items()
    ]
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
    return layered(hollow, coloured, *numbers, few, chosen)
