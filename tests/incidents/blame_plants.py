"""Who is to blame: a cause must be able to produce what it explains, and is as bad as what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from incidents.answers import Answer, planted, sound
from incidents.artifact_plants import rename
from incidents.bench import Bench, times
from kvtrace.calibration.recipe import Recipe
from kvtrace.candidates import ServingSetup
from kvtrace.findings.finding import Where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.calibration.calibrate import ScaleSet

PER_TENSOR = Recipe(granularity="tensor")
RANGE = 448.0


def fit_unit(bench: Bench, layers: Iterable[int] | None = None, reach: float = 0.9) -> None:
    """Make 1.0 a good scale: values beyond `reach` of its range shrink, those far inside stay."""
    for layer in range(bench.num_layers) if layers is None else layers:
        for tensor in "kv":
            resize(bench, layer, tensor, reach, only_if_beyond=True)


def resize(bench: Bench, layer: int, tensor: str, reach: float, *, only_if_beyond: bool = False) -> None:
    """Give a layer's K or V a largest value of `reach` times what 1.0 covers."""
    values = bench.tensors[layer, tensor]
    factor = reach * RANGE / float(np.abs(values).max())
    if not only_if_beyond or factor < 1:
        values *= np.float32(factor)


def some_layers(bench: Bench, most: int = 3) -> list[int]:
    """Return one to `most` layers at random."""
    count = int(bench.rng.integers(1, most + 1))
    return sorted(bench.rng.choice(bench.num_layers, size=count, replace=False).tolist())


def ones(scales: ScaleSet) -> ScaleSet:
    """Return as many scales of 1.0."""
    return {key: (1.0,) * len(values) for key, values in scales.items()}


def every_layer(bench: Bench) -> frozenset[int]:
    """Return all layers."""
    return frozenset(range(bench.num_layers))


def _merged_with_narrow_v(bench: Bench, factor: float) -> None:
    bench.scale_values(1 / factor, bench.all_rows, bench.heads, "v")
    # Relative to K, whatever the base: V's own range first becomes K's.
    bench.ship(bench.scales(Recipe(merge_kv=True)))


def _level(bench: Bench) -> None:
    """Give every V head the range of its K."""
    for layer, head in bench.heads:
        k, v = (np.abs(bench.tensors[layer, tensor][:, head]).max() for tensor in "kv")
        bench.tensors[layer, "v"][:, head] *= np.float32(k / v)


@planted(1, "K drifts under one scale for K and V")
def _(bench: Bench) -> Answer:
    _level(bench)
    _merged_with_narrow_v(bench, 100)
    factor = bench.between(2.5, 4)
    name = str(bench.rng.choice(sorted(set(bench.workload))))
    bench.scale_values(factor, bench.workload == name, bench.heads, "k")
    return Answer(
        strength=f"{name} × {factor:.2f}",
        first=("drift-workload",),
        never_explained=("drift-workload",),
        tensor="k",
        layers=every_layer(bench),
        where=Where("workload", (bench.called(name),)),
        remedies=("recalibrate",),
    )


@planted(1, "one scale for K and V, V is lost")
def _(bench: Bench) -> Answer:
    _level(bench)
    factor = bench.between(2**14.5, 2**17)
    _merged_with_narrow_v(bench, factor)
    return Answer(
        strength=f"{factor:,.0f} × apart",
        first=("merged-kv",),
        tensor="v",
        layers=every_layer(bench),
        severities=("error",) if factor > 2**15.5 else ("error", "warning"),
        remedies=("recalibrate",),
    )


@planted(1, "not loaded, and K would clip if they were")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    factor = bench.between(2.5, 6)
    bench.ship(times(bench.scales(PER_TENSOR), 1 / factor, "k"))
    bench.live = ones(bench.scales(PER_TENSOR))
    return Answer(
        strength=f"1.0 ran, K ÷ {factor:.2f} shipped",
        first=("scales-not-loaded",),
        beside=("k-clips",),
        never_explained=("k-clips",),
        layers=every_layer(bench),
        remedies=("look",),
    )


@planted(1, "not loaded in some layers, which clip")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    layers = some_layers(bench)
    factor = bench.between(3, 10)
    for layer in layers:
        resize(bench, layer, "k", factor)
        resize(bench, layer, "v", factor)
    shipped = bench.scales(PER_TENSOR)
    bench.ship(shipped)
    bench.live = {key: (1.0,) if key[0] in layers else values for key, values in shipped.items()}
    return Answer(
        strength=f"{len(layers)} layers, {factor:.1f} × beyond",
        first=("scales-not-loaded",),
        severities=("error",),
        layers=frozenset(layers),
        remedies=("look",),
    )


@planted(1, "V is flushed")
def _(bench: Bench) -> Answer:
    factor = bench.between(2**17, 2**20)
    layers = every_layer(bench) if bench.rng.random() < 0.5 else frozenset(some_layers(bench))
    heads = [one for one in bench.heads if one[0] in layers]
    bench.ship(times(bench.scales(), factor, "v", heads))
    return Answer(
        strength=f"{len(layers)} layers × {factor:,.0f}",
        first=("too-wide",),
        severities=("error",),
        tensor="v",
        layers=layers,
        remedies=("recalibrate",),
    )


@planted(1, "a missing layer that 1.0 serves as well")
def _(bench: Bench) -> Answer:
    layers = some_layers(bench)
    fit_unit(bench)
    bench.ship({key: one for key, one in bench.scales(PER_TENSOR).items() if key[0] not in layers})
    return Answer(
        strength=f"{len(layers)} layers",
        first=("missing-layers",),
        severities=("note",),
        layers=frozenset(layers),
    )


@planted(1, "a missing layer that clips at 1.0")
def _(bench: Bench) -> Answer:
    layers = some_layers(bench)
    factor = bench.between(3, 10)
    for layer in layers:
        resize(bench, layer, "k", factor)
    bench.ship({key: one for key, one in bench.scales(PER_TENSOR).items() if key[0] not in layers})
    return Answer(
        strength=f"{len(layers)} layers, {factor:.1f} × beyond",
        first=("missing-layers",),
        severities=("error", "warning"),
        layers=frozenset(layers),
        remedies=("recalibrate",),
    )


@planted(1, "V alone is absent, and clips at 1.0")
def _(bench: Bench) -> Answer:
    layers = some_layers(bench)
    factor = bench.between(3, 10)
    for layer in layers:
        resize(bench, layer, "v", factor)
    absent = {(layer, "v") for layer in layers}
    bench.ship({key: one for key, one in bench.scales(PER_TENSOR).items() if key not in absent})
    return Answer(
        strength=f"{len(layers)} layers, {factor:.1f} × beyond",
        first=("missing-layers",),
        tensor="v",
        layers=frozenset(layers),
        remedies=("recalibrate",),
    )


@planted(1, "an engine ran an artifact that lacks layers")
def _(bench: Bench) -> Answer:
    layers = some_layers(bench)
    factor = bench.between(3, 10)
    for layer in layers:
        resize(bench, layer, "k", factor)
    scales = bench.scales(PER_TENSOR)
    bench.ship({key: one for key, one in scales.items() if key[0] not in layers})
    bench.live = {key: (1.0,) if key[0] in layers else values for key, values in scales.items()}
    return Answer(
        strength=f"{len(layers)} layers, {factor:.1f} × beyond",
        first=("missing-layers",),
        layers=frozenset(layers),
        remedies=("recalibrate",),
    )


@planted(1, "shipped in all layers, in some by a name that nothing reads")
def _(bench: Bench) -> Answer:
    layers = some_layers(bench)
    for layer in layers:
        resize(bench, layer, "k", bench.between(3, 10))
    path = bench.ship(bench.scales(PER_TENSOR))
    for layer in layers:
        for tensor in "kv":
            rename(
                path,
                f"layers.{layer}.self_attn.{tensor}_scale",
                f"layers.{layer}.self_attn.{tensor}_cache_amax",
            )
    return Answer(
        strength=f"{len(layers)} layers",
        first=("unmatched-names",),
        layers=frozenset(layers),
        remedies=("look",),
    )


@planted(1, "1.0 everywhere, and nothing is lost")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    bench.ship(ones(bench.scales(PER_TENSOR)))
    return Answer(strength="an artifact", first=("constant-scales",), severities=("note",))


@planted(1, "an engine used 1.0, none shipped, and nothing is lost")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    bench.live = ones(bench.scales(PER_TENSOR))
    return Answer(strength="in effect", first=("scales-not-loaded",), severities=("note",))


@planted(1, "1.0 everywhere, and K clips in some layers")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    layers = some_layers(bench)
    factor = bench.between(3, 10)
    for layer in layers:
        resize(bench, layer, "k", factor)
    bench.ship(ones(bench.scales(PER_TENSOR)))
    return Answer(
        strength=f"{len(layers)} layers, {factor:.1f} × beyond",
        first=("constant-scales",),
        tensor="k",
        layers=frozenset(layers),
        remedies=("recalibrate",),
    )


@planted(1, "an engine used 1.0, none shipped, and V clips")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    layers = some_layers(bench)
    factor = bench.between(3, 10)
    for layer in layers:
        resize(bench, layer, "v", factor)
    bench.live = ones(bench.scales(PER_TENSOR))
    return Answer(
        strength=f"{len(layers)} layers, {factor:.1f} × beyond",
        first=("scales-not-loaded",),
        tensor="v",
        layers=frozenset(layers),
        remedies=("recalibrate",),
    )


@sound(1, "layers left in BF16 by a flag")
def _(bench: Bench) -> str:
    layers = some_layers(bench)
    for layer in layers:
        resize(bench, layer, "k", 8)
    bench.ship({key: one for key, one in bench.scales().items() if key[0] not in layers})
    bench.setup = ServingSetup("vllm-cuda", skip_layers=tuple(layers))
    return f"{len(layers)} layers"


@sound(1, "layers that the engine left in BF16")
def _(bench: Bench) -> str:
    layers = some_layers(bench)
    for layer in layers:
        resize(bench, layer, "k", 8)
    scales = {key: one for key, one in bench.scales(PER_TENSOR).items() if key[0] not in layers}
    bench.ship(scales)
    bench.live, bench.kept_in_bf16 = scales, tuple(layers)
    return f"{len(layers)} layers"


@sound(1, "one scale for K and V, both within it")
def _(bench: Bench) -> str:
    _level(bench)
    factor = bench.between(2, 120)
    _merged_with_narrow_v(bench, factor)
    return f"{factor:.0f} × apart"
