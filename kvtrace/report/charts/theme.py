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
    bins: tuple[str, ...]
    """Of `kvtrace.report.bins.BINS`: lightness changes one way only, which a black-and-white print keeps."""
    range_bins: tuple[str, ...]
    """Of `RANGE_BINS`: grey, since using the range harms nothing."""
    on_middle: str
    """Text on the third bin."""
    on_strong: str
    """Text on the fourth and fifth."""


LIGHT: Final = Palette(
    text="#18212c",
    muted="#55606d",
    grid="#dde1e6",
    paper="#ffffff",
    k="#0060a8",
    v="#b84a00",
    bins=("#f7f0e3", "#fbcf8b", "#ee7c48", "#b32d5b", "#4a0f57"),
    range_bins=("#eef1f4", "#d3dce4", "#b0bfcd", "#8499ad", "#566b80"),
    on_middle="#18212c",
    on_strong="#ffffff",
)
DARK: Final = Palette(
    text="#e8ecf1",
    muted="#a4aeba",
    grid="#2b343e",
    paper="#14191f",
    k="#62b5f0",
    v="#f2a43c",
    bins=("#2d2638", "#6b2a6b", "#c4475a", "#f7953f", "#fde488"),
    range_bins=("#212931", "#33404d", "#4b5e70", "#71889e", "#a5b8ca"),
    on_middle="#ffffff",
    on_strong="#14191f",
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
        "range": {
            "category": [palette.k, palette.v],
            "ordinal": list(palette.bins),
            "ramp": list(palette.range_bins),
        },
        "rule": {"color": palette.muted},
        "text": {"color": palette.text, "fontSize": 12},
        "style": {
            "cell": {"stroke": palette.paper},
            "calm": {"color": palette.paper, "stroke": palette.grid},
            "hatch": {"color": palette.muted},
            "chosen": {"stroke": palette.text, "color": palette.text},
            "guide": {"color": palette.muted},
            "ink": {"color": palette.text},
            "onMiddle": {"color": palette.on_middle},
            "onStrong": {"color": palette.on_strong},
        },
    }
