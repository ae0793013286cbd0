"""What several charts share: layers and their fields, shares that span decades and may be zero, octaves."""

from __future__ import annotations

from typing import Any, Final

Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""
TENSOR_DOMAIN: Final = ["K", "V"]
SHARE_LABEL: Final = "format(datum.value * 100, '.3~g') + ' %'"
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"


def layered(*layers: Spec) -> Spec:
    """Return the layers drawn over each other, without a config: page and plots have theirs."""
    return {"$schema": _SCHEMA, "layer": list(layers)}


def layer(
    data: str, mark: Spec, encoding: Spec, *, name: str | None = None, where: str | None = None
) -> Spec:
    """Return one layer. data: the name of its rows. name: its marks' class. where: which rows are drawn."""
    named = {} if name is None else {"name": name}
    filtered = {} if where is None else {"transform": [{"filter": where}]}
    return named | {"data": {"name": data}} | filtered | {"mark": mark, "encoding": encoding}


def nominal(field: str, **how: Any) -> Spec:
    """Return the channel of a field of names."""
    return {"field": field, "type": "nominal", **how}


def ordinal(field: str, **how: Any) -> Spec:
    """Return the channel of a field of names or numbers in an order."""
    return {"field": field, "type": "ordinal", **how}


def quantity(field: str, **how: Any) -> Spec:
    """Return the channel of a field of numbers."""
    return {"field": field, "type": "quantitative", **how}


def told(field: str = "text") -> Spec:
    """Return the channels that say a row's text to the eye and to a screen reader."""
    return {"description": nominal(field), "tooltip": nominal(field)}


UNTOLD: Final[Spec] = {"description": {"value": ""}}
"""For marks beside one that says it already."""


def if_else(test: str, value: float, otherwise: float) -> Spec:
    """Return the channel of one number where a row passes the test, and of another where not."""
    return {"condition": {"test": test, "value": value}, "value": otherwise}


def share_axis(floor: float, title: str, *, top: float = 1.0) -> Spec:
    """Return a logarithmic scale and axis from `floor`, where 0 is drawn and labelled so, to `top`."""
    ticks = [floor]
    tick = floor * 10
    while tick <= top * 1.001:
        ticks.append(tick)
        tick *= 10
    scale = {"type": "log", "domain": [floor, top], "clamp": True, "nice": False}
    label = f"datum.value < {floor * 2:.6g} ? '0' : {SHARE_LABEL}"
    axis = {"title": title, "values": ticks, "labelExpr": label, "domain": False, "ticks": False}
    return {"scale": scale, "axis": axis}


def crowded_axis(**how: Any) -> Spec:
    """Return an axis of upright labels, of which some are left out where there is no room for all."""
    return {"labelAngle": 0, "labelOverlap": "parity", "labelSeparation": 6, "ticks": False, **how}


def tensor_colour(*, legend: bool = False) -> Spec:
    """Return K and V in their colours."""
    return nominal(
        "tensor",
        scale={"domain": TENSOR_DOMAIN, "range": "category"},
        legend={"title": None, "orient": "top"} if legend else None,
    )
