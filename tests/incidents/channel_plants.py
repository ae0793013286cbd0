"""Ordinary channels behind outliers: a few channels of K carry the energy, and hide what the others lose."""

from __future__ import annotations

import numpy as np

from incidents.answers import OUTLIERS, Answer, planted, sound
from incidents.bench import Bench, times
from incidents.blame_plants import RANGE, every_layer

_SUBNORMAL = 2.0**-7.2
"""Spread of ordinary channels, in units of the scale, at which e4m3fn's subnormal steps leave 21 to 22 dB."""


def _ordinary_over_scale(bench: Bench, layer: int, head: int) -> float:
    """Return the median channel's spread in units of the absmax scale."""
    values = bench.tensors[layer, "k"][:, head]
    return float(np.median(values.std(axis=0)) / (np.abs(values).max() / RANGE))


@planted(4, "a wide scale under which ordinary channels are subnormal", OUTLIERS)
def _(bench: Bench) -> Answer:
    further = bench.between(1, 2)
    scales = bench.scales()
    for layer, head in bench.heads:
        factor = further * _ordinary_over_scale(bench, layer, head) / _SUBNORMAL
        scales = times(scales, factor, "k", [(layer, head)])
    bench.ship(scales)
    return Answer(
        strength=f"ordinary channels at 2^{np.log2(_SUBNORMAL / further):.1f} of the scale",
        first=("ordinary-channels",),
        tensor="k",
        layers=every_layer(bench),
        remedies=("recalibrate",),
    )


@planted(4, "outlier channels so wide that the others are subnormal", OUTLIERS)
def _(bench: Bench) -> Answer:
    further = bench.between(1, 2)
    heads = bench.pick(4)
    for layer, head in heads:
        values = bench.tensors[layer, "k"][:, head]
        widest = np.argsort(np.abs(values).max(axis=0))[-4:]
        values[:, widest] *= np.float32(further * _ordinary_over_scale(bench, layer, head) / _SUBNORMAL)
    bench.ship(bench.scales())
    return Answer(
        strength=f"{len(heads)} heads, 2^{np.log2(_SUBNORMAL / further):.1f} of the scale",
        first=("ordinary-channels", "no-scale-helps"),
        tensor="k",
        layers=frozenset(layer for layer, _ in heads),
        remedies=("leave layers",),
    )


@sound(4, "outlier channels, absmax", OUTLIERS)
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    return "own rows"


@sound(4, "outlier channels, scales a little wide", OUTLIERS)
def _(bench: Bench) -> str:
    factor = bench.between(1, 8)
    bench.ship(times(bench.scales(), factor))
    return f"× {factor:.1f}"
