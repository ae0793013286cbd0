"""Colours and type of all charts, light and dark; told apart by lightness and shape, not hue alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Palette:
    """One theme. K and V are the blue and orange of Okabe and Ito (2008), safe for colour-blind readers."""

    text: str
    muted: str
    grid: str
    paper: str
    k: str
    v: str
    calm: str
    """A cell with nothing to see."""
    ramp: tuple[str, ...]
    """From little to much: its lightness changes one way only, so it survives a black-and-white print."""


LIGHT: Final = Palette(
    text="#1c2430",
    muted="#56606e",
    grid="#dfe3e8",
    paper="#ffffff",
    k="#0060a8",
    v="#b84a00",
    calm="#eef1f4",
    ramp=("#fde3b8", "#f9b069", "#ea6a42", "#b32d5b", "#5a1466"),
)
DARK: Final = Palette(
    text="#e6eaf0",
    muted="#a2adba",
    grid="#323b47",
    paper="#171c23",
    k="#62b5f0",
    v="#f2a43c",
    calm="#262e38",
    ramp=("#4d1f63", "#94306c", "#d9534f", "#f7953f", "#fde488"),
)


def chart_config(palette: Palette) -> dict[str, Any]:
    """Return the Vega-Lite config of a theme."""
    axis = {
        "labelColor": palette.muted,
        "titleColor": palette.text,
        "tickColor": palette.grid,
        "domainColor": palette.grid,
        "gridColor": palette.grid,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 600,
        "labelLimit": 130,
        "titleLimit": 400,
    }
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {
            "labelColor": palette.text,
            "titleColor": palette.text,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "labelLimit": 240,
        },
        "range": {"category": [palette.k, palette.v], "heatmap": list(palette.ramp)},
        "rule": {"color": palette.muted},
        "text": {"color": palette.text, "fontSize": 12},
        "style": {
            "calm": {"color": palette.calm},
            "hatch": {"color": palette.muted},
            "chosen": {"stroke": palette.text, "color": palette.text},
            "guide": {"color": palette.muted},
            "ink": {"color": palette.text},
        },
    }
