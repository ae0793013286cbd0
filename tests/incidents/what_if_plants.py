"""A what-if is a what-if: scales that did not run are compared, and accused of what they would do alone."""

from __future__ import annotations

from incidents.answers import Answer, planted, sound
from incidents.bench import Bench, times
from incidents.blame_plants import PER_TENSOR, every_layer, fit_unit, ones, resize, some_layers
from kvtrace.calibration.recipe import Recipe

_RECIPES = (PER_TENSOR, Recipe(headroom=2), Recipe("percentile", 99.99), Recipe(headroom=1.2))


def _recipe(bench: Bench) -> Recipe:
    return _RECIPES[int(bench.rng.integers(len(_RECIPES)))]


@sound(2, "new scales of an FP8 trace, what ran is sound")
def _(bench: Bench) -> str:
    bench.live = times(bench.scales(PER_TENSOR), bench.between(1.1, 3))
    recipe = _recipe(bench)
    bench.calibrated_on_itself(recipe)
    return f"{recipe.method} per {recipe.granularity}"


@sound(2, "new scales beside those that ran")
def _(bench: Bench) -> str:
    bench.live = times(bench.scales(PER_TENSOR), bench.between(1.1, 3))
    bench.ship(bench.live)
    bench.calibrated_on_itself(_recipe(bench), "tuned")
    return "2 artifacts"


@sound(2, "two new sets of scales of an FP8 trace")
def _(bench: Bench) -> str:
    bench.live = times(bench.scales(PER_TENSOR), bench.between(1.1, 3))
    bench.calibrated_on_itself(PER_TENSOR, "tuned")
    bench.calibrated_on_itself(Recipe(headroom=2), "other")
    return "2 artifacts"


@planted(2, "1.0 ran and clips, new scales are given")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    layers = some_layers(bench)
    for layer in layers:
        resize(bench, layer, "k", bench.between(3, 10))
    bench.live = ones(bench.scales(PER_TENSOR))
    new = bench.calibrated_on_itself(_recipe(bench))
    return Answer(
        strength=f"{len(layers)} layers",
        first=("scales-not-loaded",),
        tensor="k",
        layers=frozenset(layers),
        candidate="effective",
        sound=(new.name,),
        remedies=("recalibrate",),
    )


@planted(2, "narrow scales ran, new scales are given")
def _(bench: Bench) -> Answer:
    factor = bench.between(2, 4)
    bench.live = times(bench.scales(PER_TENSOR), 1 / factor, "k")
    new = bench.calibrated_on_itself(_recipe(bench))
    return Answer(
        strength=f"K ÷ {factor:.2f}",
        first=("k-clips",),
        tensor="k",
        layers=every_layer(bench),
        candidate="effective",
        sound=(new.name,),
        remedies=("recalibrate",),
    )


@planted(2, "sound scales ran, the new ones clip")
def _(bench: Bench) -> Answer:
    bench.live = times(bench.scales(PER_TENSOR), 1.2)
    factor = bench.between(2.5, 6)
    new = bench.calibrated_on_itself(Recipe(headroom=1 / factor))
    return Answer(
        strength=f"÷ {factor:.2f}",
        first=("constant-factor",),
        layers=every_layer(bench),
        candidate=new.name,
        remedies=("recalibrate",),
    )


@planted(2, "a checkpoint's scales are not those that ran")
def _(bench: Bench) -> Answer:
    factor = bench.between(1.3, 4)
    bench.live = times(bench.scales(PER_TENSOR), factor)
    path = bench.deploy(bench.scales(PER_TENSOR), bench.checkpoint("original"))
    return Answer(
        strength=f"× {factor:.2f}",
        first=("scales-not-loaded",),
        layers=every_layer(bench),
        candidate=path.name,
        remedies=("look",),
    )


@planted(2, "scales calibrated before were not loaded")
def _(bench: Bench) -> Answer:
    fit_unit(bench)
    layers = some_layers(bench)
    for layer in layers:
        resize(bench, layer, "k", bench.between(3, 10))
    path = bench.calibrated(PER_TENSOR)
    bench.live = ones(bench.scales(PER_TENSOR))
    return Answer(
        strength=f"{len(layers)} layers clip",
        first=("scales-not-loaded",),
        candidate=path.name,
        remedies=("look",),
    )
