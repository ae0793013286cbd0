"""Causes that once showed as symptoms alone: scales of another place, of another kind, or off by a factor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from incidents.answers import EVERY, LLAMA, MANY, QWEN, SEVERAL_HEADS, Answer, planted, sound
from incidents.bench import Bench, times
from incidents.blame_plants import PER_TENSOR, every_layer, fit_unit, ones
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.save import SCALES_FILE
from kvtrace.candidates import ServingSetup

if TYPE_CHECKING:
    from kvtrace.calibration.calibrate import ScaleSet


def _apart(bench: Bench) -> None:
    """Give layers ranges of their own, which a base of few layers may lack."""
    for layer in range(bench.num_layers):
        for tensor in "kv":
            bench.tensors[layer, tensor] *= np.float32(2 ** bench.rng.uniform(-2.5, 2.5))


@planted(6, "scales of the next or the previous layer")
def _(bench: Bench) -> Answer:
    _apart(bench)
    by = 1 if bench.rng.random() < 0.5 else -1
    recipe = PER_TENSOR if bench.rng.random() < 0.5 else Recipe()
    scales, last = bench.scales(recipe), bench.num_layers - 1
    shifted = {(n, t): scales[min(max(n + by, 0), last), t] for n, t in scales}
    bench.ship(shifted)
    return Answer(
        strength=f"{by:+d}, per {recipe.granularity}",
        first=("scales-of-neighbour-layer",),
        remedies=("look",),
    )


def _ranks_apart(bench: Bench) -> ScaleSet:
    """Give the second half of the heads other ranges; return good scales."""
    half = bench.num_heads // 2
    factor = bench.between(4, 8)
    later = [(layer, head) for layer, head in bench.heads if head >= half]
    bench.scale_values(factor, bench.all_rows, later)
    return bench.scales(Recipe(headroom=1.1))


def _first_rank_everywhere(scales: ScaleSet) -> ScaleSet:
    return {key: values[: len(values) // 2] * 2 for key, values in scales.items()}


@planted(6, "one rank's scales stored for all ranks", SEVERAL_HEADS)
def _(bench: Bench) -> Answer:
    bench.ship(_first_rank_everywhere(_ranks_apart(bench)))
    return Answer(
        strength="2 ranks",
        first=("rank-scales-everywhere",),
        layers=every_layer(bench),
        remedies=("look",),
    )


@planted(6, "one rank's scales in effect on all ranks", SEVERAL_HEADS)
def _(bench: Bench) -> Answer:
    scales = _ranks_apart(bench)
    bench.ship(scales)
    bench.tp, bench.live = 2, _first_rank_everywhere(scales)
    return Answer(
        strength="2 ranks",
        first=("rank-scales-everywhere",),
        layers=every_layer(bench),
        remedies=("look",),
    )


@planted(6, "a collapse to each rank's maximum", (QWEN, LLAMA, MANY))  # two heads a rank, or none collapses
def _(bench: Bench) -> Answer:
    scales = _ranks_apart(bench)
    bench.ship(scales)
    half = bench.num_heads // 2
    bench.tp = 2
    bench.live = {
        key: (max(values[:half]),) * half + (max(values[half:]),) * half for key, values in scales.items()
    }
    return Answer(strength="2 ranks", first=("per-head-collapsed",), remedies=("look",))


def _with_projection_scales(bench: Bench, kind: str) -> Answer:
    """Store the projections' scales too, and K's and V's as what they are."""
    fits = bench.scales(PER_TENSOR)
    others = {
        (layer, tensor): float(bench.rng.lognormal(np.log(4e-4 if kind == "weight_scale" else 0.02), 0.3))
        for layer, tensor in fits
    }
    if kind == "input_scale":  # the projections of one layer have one input
        others = {(layer, tensor): others[layer, "k"] for layer, tensor in fits}
    others = {key: float(torch.tensor(value).bfloat16()) for key, value in others.items()}
    path = bench.ship({key: (value,) for key, value in others.items()})
    stored = load_file(path / SCALES_FILE)
    for (layer, tensor), value in others.items():
        stored[f"model.layers.{layer}.self_attn.{tensor}_proj.{kind}"] = torch.tensor([value])
    save_file(stored, path / SCALES_FILE)
    return Answer(
        strength=kind,
        first=("not-a-kv-scale",),
        layers=every_layer(bench),
        remedies=("look", "recalibrate"),
    )


@planted(6, "a weight's scale taken for a KV scale")
def _(bench: Bench) -> Answer:
    return _with_projection_scales(bench, "weight_scale")


@planted(6, "an input's scale taken for a KV scale")
def _(bench: Bench) -> Answer:
    return _with_projection_scales(bench, "input_scale")


@planted(6, "one of K and V is stored inverted")
def _(bench: Bench) -> Answer:
    recipe = PER_TENSOR if bench.rng.random() < 0.5 else Recipe()
    scales = bench.scales(recipe)
    # Scales around 1 are their own reciprocals: then nothing is wrong.
    far = [t for t in "kv" if np.median([one[0] for key, one in scales.items() if key[1] == t]) < 1 / 8]
    tensor = str(bench.rng.choice(far))
    bench.ship({key: tuple(1 / v for v in one) if key[1] == tensor else one for key, one in scales.items()})
    return Answer(
        strength=f"{tensor.upper()}, per {recipe.granularity}",
        first=("inverse-scales",),
        tensor="k" if tensor == "k" else "v",
        layers=every_layer(bench),
        remedies=("look",),
    )


@planted(6, "all scales too small by one factor")
def _(bench: Bench) -> Answer:
    factor = float(bench.rng.choice([2, 4, 8, 16]))
    recipe = PER_TENSOR if bench.rng.random() < 0.5 else Recipe()
    scales = times(bench.scales(recipe), 1 / factor)
    bench.ship(scales)
    if recipe is PER_TENSOR:
        bench.live = scales
    return Answer(
        strength=f"÷ {factor:.0f}, per {recipe.granularity}",
        first=("constant-factor",),
        layers=every_layer(bench),
        remedies=("recalibrate", "look"),
    )


@planted(6, "fp8_e5m2 with a checkpoint that ships scales")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    bench.ship(bench.scales(PER_TENSOR))
    # Without scales, as an engine runs with that dtype.
    bench.live, bench.fp8_dtype = ones(bench.scales(PER_TENSOR)), "fp8_e5m2"
    bench.setup = ServingSetup("vllm-cuda", format="e5m2")
    return Answer(
        strength="e5m2",
        first=("engine-crash", "invalid-artifact"),
        remedies=("change setup",),
        refusal="fp8_e4m3",
    )


@sound(6, "all scales too wide by one factor", (LLAMA, MANY, QWEN))
def _(bench: Bench) -> str:
    factor = float(bench.rng.choice([2, 4, 8]))
    bench.ship(times(bench.scales(), factor))
    return f"× {factor:.0f}"


@sound(6, "heads that need the same scale, stored per head", SEVERAL_HEADS)
def _(bench: Bench) -> str:
    scales = bench.scales(PER_TENSOR)
    bench.ship({key: values * bench.num_heads for key, values in scales.items()})
    return "per head"


@sound(6, "layers of like ranges, with headroom", EVERY)
def _(bench: Bench) -> str:
    for layer in range(bench.num_layers):
        for tensor in "kv":
            values = bench.tensors[layer, tensor]
            values *= np.float32(4 * bench.rng.uniform(0.9, 1.1) / np.abs(values).max())
    bench.ship(bench.scales(Recipe(headroom=1.5)))
    return "within 20 %"


@sound(6, "scales sliced over ranks as they should be", SEVERAL_HEADS)
def _(bench: Bench) -> str:
    bench.tp, bench.live = 2, _ranks_apart(bench)
    bench.ship(bench.live)
    return "2 ranks"
