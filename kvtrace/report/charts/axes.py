"""Axes that several charts share: shares that span decades and may be zero, and octaves of positions."""

from __future__ import annotations

from typing import Any, Final

import altair as alt

Spec = dict[str, Any]
"""A Vega-Lite specification."""
TENSOR_DOMAIN: Final = ["K", "V"]
SHARE_LABEL: Final = "format(datum.value * 100, '.3~g') + ' %'"


def layered(*charts: Any) -> Spec:
    """Return the charts drawn over each other, without Altair's config: page and plots have theirs."""
    spec: Spec = alt.layer(*charts).to_dict()
    del spec["config"]
    return spec


def share_axis(floor: float, title: str, *, top: float = 1.0) -> tuple[alt.Scale, alt.Axis]:
    """Return a logarithmic scale and axis from `floor`, where 0 is drawn and labelled so, to `top`."""
    ticks = [floor]
    tick = floor * 10
    while tick <= top * 1.001:
        ticks.append(tick)
        tick *= 10
    scale = alt.Scale(type="log", domain=[floor, top], clamp=True, nice=False)
    label = f"datum.value < {floor * 2:.6g} ? '0' : {SHARE_LABEL}"
    return scale, alt.Axis(title=title, values=ticks, labelExpr=label, domain=False, ticks=False)


def crowded_axis() -> alt.Axis:
    """Return an axis of upright labels, of which some are left out where there is no room for all."""
    return alt.Axis(labelAngle=0, labelOverlap="parity", labelSeparation=6, ticks=False)


def tensor_colour(*, legend: bool = False) -> alt.Color:
    """Return K and V in their colours."""
    return alt.Color(
        "tensor:N",
        scale=alt.Scale(domain=TENSOR_DOMAIN, range="category"),
        legend=alt.Legend(title=None, orient="top") if legend else None,
    )
