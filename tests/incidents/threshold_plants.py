"""Honest thresholds: equal traffic is no finding, and a warning needs requests that are affected."""

from __future__ import annotations

import numpy as np

from incidents.answers import Answer, planted, sound
from incidents.bench import Bench, times
from incidents.blame_plants import PER_TENSOR
from incidents.where_plants import scale_to_range
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.findings.finding import Where

ANOTHER_DRAW = "calibrated on one draw of the traffic, judged on another"
_RECIPES = (
    Recipe(),
    Recipe(),
    PER_TENSOR,
    Recipe(headroom=1.1),
    Recipe(headroom=2),
    Recipe("percentile", 99.99),
    Recipe("mse"),
)
_FEWEST = 3
"""Requests affected below which a loss in one of many is a note."""


@sound(5, ANOTHER_DRAW)
def _(bench: Bench) -> str:
    recipe = _RECIPES[int(bench.rng.integers(len(_RECIPES)))]
    bench.calibrated_on_another_draw(recipe)
    return f"{recipe.method} per {recipe.granularity} × {recipe.headroom}"


@sound(5, "a deployment mended with scales of another draw")
def _(bench: Bench) -> str:
    bench.live = bench.calibrated_on_another_draw(PER_TENSOR)
    return "in effect"


@sound(5, "one token of one request clips")
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    factor = bench.between(2, 8)
    row = np.zeros(len(bench.position), bool)
    row[int(bench.rng.integers(len(row)))] = True
    for layer, head in bench.pick(min(5, len(bench.heads))):
        scale_to_range(bench, layer, head, "k", row, factor)
    return f"× {factor:.1f}"


@planted(5, "longer than calibrated, nothing clips")
def _(bench: Bench) -> Answer:
    length = int(bench.rng.choice([256, 512]))
    bench.calibrated(Recipe(headroom=4), DatasetRules(max_position=length))
    return Answer(strength=f"below {length}", first=("short-calibration",), severities=("note",))


@planted(5, "a workload was not calibrated on, nothing clips")
def _(bench: Bench) -> Answer:
    left_out = str(bench.rng.choice(sorted(set(bench.workload))))
    known = tuple(sorted({str(name) for name in bench.workload} - {left_out}))
    bench.calibrated(Recipe(headroom=4), DatasetRules(workloads=known))
    return Answer(strength=left_out, first=("outside-envelope",), severities=("note",))


@planted(5, "longer than calibrated, and clips there")
def _(bench: Bench) -> Answer:
    # Two requests of many are a note: a warning needs three that are affected.
    lengths = [one for one in (256, 512) if _num_requests(bench, one) >= _FEWEST]
    length = int(bench.rng.choice(lengths))
    bench.calibrated(Recipe(headroom=1.3), DatasetRules(max_position=length))
    factor = bench.between(3.5, 6)
    heads = bench.pick(min(6, len(bench.heads)))
    for layer, head in heads:
        scale_to_range(bench, layer, head, "k", bench.position >= length, factor)
    return Answer(
        strength=f"from {length} × {factor:.2f}",
        first=("drift-position",),
        beside=("short-calibration",),
        tensor="k",
        layers=frozenset(layer for layer, _ in heads),
        where=Where("position", (), length),
        remedies=("recalibrate",),
    )


@sound(5, "few requests of one kind, covered")
def _(bench: Bench) -> str:
    left = int(bench.rng.integers(8, 16))
    bench.ship(times(bench.scales(), 1.1))
    chosen = bench.rng.choice([one.request for one in bench.requests], size=left, replace=False)
    bench.keep(np.isin(bench.request_of_row, chosen))
    return f"{left} requests"


def _num_requests(bench: Bench, position: int) -> int:
    """Return the requests that were captured at this position or beyond."""
    return len(np.unique(bench.request_of_row[bench.position >= position]))
