"""Layer × head: how much each head loses, or how much of its range it uses. One map for K and one for V."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kvtrace.report.bins import BINS
from kvtrace.report.charts.axes import UNTOLD, Spec, crowded_axis, layer, layered, nominal, ordinal, told

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
    place = {
        "x": ordinal("layer", title="layer" if alone else None, axis=crowded_axis(domain=False)),
        "y": ordinal("kv_head", title="KV head" if alone else None, axis={"ticks": False, "domain": False}),
    }
    cells = place | told()
    colour = nominal(
        "letter",
        scale={"domain": [one.letter for one in bins], "range": colours},
        legend=_legend(bins) if alone else None,
    )
    cell = {"type": "rect", "cursor": "pointer", "strokeWidth": 1}
    number = {"type": "text", "fontSize": 10.5, "aria": False}
    hatch = {"type": "point", "shape": _HATCH, "size": 90, "filled": False, "opacity": 0.9, "aria": False}
    chosen = {"type": "rect", "style": "chosen", "strokeWidth": 3, "fillOpacity": 0, "aria": False}
    return layered(
        layer("cells", cell | {"style": "calm"}, cells, name="hollow", where="datum.letter == '.'"),
        layer(
            "cells",
            cell | {"style": "cell"},
            cells | {"color": colour},
            name="cells",
            where="datum.letter != '.'",
        ),
        *(
            layer(
                "cells",
                number | {"style": style},
                cells | UNTOLD | {"text": nominal("label")},
                name=style,
                where=f"datum.label != '' && ({condition})",
            )
            for style, condition in _ON.items()
        ),
        layer(
            "cells",
            hatch | {"style": "hatch", "strokeWidth": 1.2},
            cells | UNTOLD,
            name="few",
            where="datum.is_few",
        ),
        layer("chosen", chosen, place, name="chosen"),
    )


def _legend(bins: Sequence[Bin]) -> Spec:
    meanings = ", ".join(f"'{one.letter}': '{one.meaning}'" for one in bins)
    label = f"({{{meanings}}})[datum.label]"
    return {"title": None, "orient": "top", "direction": "horizontal", "labelExpr": label}
