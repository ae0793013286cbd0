"""Cases in which nothing is wrong: no finding above a note may come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from incidents.planting import healthy
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe

if TYPE_CHECKING:
    from incidents.bench import Bench

PER_TENSOR = Recipe(granularity="tensor")


@healthy("absmax per head")
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    return "own rows"


@healthy("absmax per tensor, loaded")
def _(bench: Bench) -> str:
    bench.live = bench.scales(PER_TENSOR)
    bench.ship(bench.live)
    return "in effect"


@healthy("per head, loaded")
def _(bench: Bench) -> str:
    bench.live = bench.scales(Recipe(headroom=1.5))
    bench.ship(bench.live)
    return "in effect"


@healthy("least squared error")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(Recipe("mse")))
    return "own rows"


@healthy("percentile 99.99")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(Recipe("percentile", 99.99)))
    return "own rows"


@healthy("percentile 99.9")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(Recipe("percentile", 99.9)))
    return "own rows"


@healthy("wide scales")
def _(bench: Bench) -> str:
    factor = bench.between(2, 512)
    bench.ship(bench.scales(Recipe(headroom=factor)))
    return f"× {factor:.0f}"


@healthy("powers of two")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(Recipe(power_of_two=True)))
    return "own rows"


@healthy("one scale for K and V alike")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(Recipe(merge_kv=True)))
    return "own rows"


@healthy("few requests")
def _(bench: Bench) -> str:
    left = int(bench.rng.integers(6, 12))
    chosen = bench.rng.choice([one.request for one in bench.requests], size=left, replace=False)
    bench.ship(bench.scales())
    bench.keep(np.isin(bench.request_of_row, chosen))
    return f"{left} requests"


@healthy("other lengths per class")
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    late = (bench.workload == "code") & (bench.position < 100)
    early = (bench.workload == "language") & (bench.position >= 60)
    bench.keep(~late & ~early)
    return "code long, language short"


@healthy("heavy tails, covered")
def _(bench: Bench) -> str:
    share, factor = bench.between(0.005, 0.05), bench.between(4, 40)
    bench.scale_values(factor, bench.rng.random(len(bench.position)) < share, bench.heads)
    bench.ship(bench.scales())
    return f"{share:.1%} of the rows × {factor:.0f}"


@healthy("one workload wider, covered")
def _(bench: Bench) -> str:
    factor = bench.between(2, 16)
    bench.scale_values(factor, bench.workload == "language", bench.heads)
    bench.ship(bench.scales())
    return f"language × {factor:.1f}"


@healthy("wider with position, covered")
def _(bench: Bench) -> str:
    factor = bench.between(2, 8)
    bench.scale_values(factor, bench.position >= 1024, bench.heads)
    bench.ship(bench.scales(PER_TENSOR))
    return f"from 1,024 × {factor:.1f}"


@healthy("held-out requests, headroom 2")
def _(bench: Bench) -> str:
    numbers = np.array([one.request for one in bench.requests])
    held_out = bench.rng.choice(numbers, size=len(numbers) // 3, replace=False)
    whole = dict(bench.tensors)
    calibration = ~np.isin(bench.request_of_row, held_out)
    bench.tensors = {key: values[calibration] for key, values in whole.items()}
    bench.ship(bench.scales(Recipe(headroom=2)))
    bench.tensors = whole
    return f"{len(held_out)} requests"


@healthy("calibrated on all, with its manifest")
def _(bench: Bench) -> str:
    bench.calibrated(Recipe(headroom=2), DatasetRules())
    return "headroom 2"


@healthy("an outlier head within reach")
def _(bench: Bench) -> str:
    factor = bench.between(8, 128)
    bench.scale_values(factor, np.ones(len(bench.position), bool), bench.pick(2), "k")
    bench.ship(bench.scales(PER_TENSOR))
    return f"× {factor:.0f}"
