"""Ordinary channels behind outliers: a few channels of K carry the energy, and hide what the others lose."""

from __future__ import annotations

import numpy as np

from incidents.answers import LLAMA, MANY, OUTLIERS, WIDE, Answer, planted, sound
from incidents.bench import Bench, times
from incidents.blame_plants import RANGE, every_layer, some_layers

_WITHOUT_OUTLIERS = (LLAMA, WIDE, MANY)
_SUBNORMAL = 2.0**-7.2
"""Spread of ordinary channels, in units of the scale, at which e4m3fn's subnormal steps leave 21 to 22 dB."""


_WIDE_SCALE = ("ordinary-channels", "too-wide")
"""The second where so many values flush that it shows without telling channels apart; the remedy is one."""


def _ordinary_over_scale(bench: Bench, layer: int, head: int, tensor: str = "k") -> float:
    """Return the median channel's spread in units of the absmax scale."""
    values = bench.tensors[layer, tensor][:, head]
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
        first=_WIDE_SCALE,
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


def _widen_three_of_v(bench: Bench, layers: list[int]) -> float:
    """Make three channels of V in some layers' heads 60 to 250 times as wide as the median one."""
    further = bench.between(60, 250)
    for layer in layers:
        for head in range(bench.num_heads):
            values = bench.tensors[layer, "v"][:, head]
            spread = values.std(axis=0)
            chosen = bench.rng.choice(values.shape[1], size=3, replace=False)
            values[:, chosen] *= np.float32(further * np.median(spread)) / spread[chosen]
    return further


@planted(4, "V with outlier channels under a wide scale", _WITHOUT_OUTLIERS)
def _(bench: Bench) -> Answer:
    layers = some_layers(bench)
    outliers = _widen_three_of_v(bench, layers)
    further = bench.between(1, 2)
    scales = bench.scales()
    for layer in layers:
        for head in range(bench.num_heads):
            factor = further * _ordinary_over_scale(bench, layer, head, "v") / _SUBNORMAL
            scales = times(scales, factor, "v", [(layer, head)])
    bench.ship(scales)
    return Answer(
        strength=f"3 channels × {outliers:.0f}, the others at 2^{np.log2(_SUBNORMAL / further):.1f}",
        first=_WIDE_SCALE,
        tensor="v",
        layers=frozenset(layers),
        remedies=("recalibrate",),
    )


@sound(4, "V with outlier channels, absmax", _WITHOUT_OUTLIERS)
def _(bench: Bench) -> str:
    outliers = _widen_three_of_v(bench, some_layers(bench))
    bench.ship(bench.scales())
    return f"3 channels × {outliers:.0f}"


@sound(4, "outlier channels, absmax", OUTLIERS)
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    return "own rows"


@sound(4, "outlier channels, scales a little wide", OUTLIERS)
def _(bench: Bench) -> str:
    factor = bench.between(1, 8)
    bench.ship(times(bench.scales(), factor))
    return f"× {factor:.1f}"
