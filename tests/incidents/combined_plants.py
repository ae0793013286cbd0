"""Two faults at once: both must be named before anything that is not their consequence."""

from __future__ import annotations

import numpy as np

from incidents.bench import Bench, times
from incidents.planting import incident
from kvtrace.calibration.recipe import Recipe

PER_TENSOR = Recipe(granularity="tensor")


@incident("not loaded, and stale", "scales-not-loaded", "stale-artifact")
def _(bench: Bench) -> str:
    bench.calibrated(PER_TENSOR)
    bench.live = dict.fromkeys(bench.scales(PER_TENSOR), (1.0,))
    bench.model = bench.model | {"weights_digest": "x" * 64}
    return "1.0, other weights"


@incident("stale, and K clips", "stale-artifact", "k-clips")
def _(bench: Bench) -> str:
    bench.calibrated(Recipe())
    factor = bench.between(2, 4)
    bench.scale_values(factor, np.ones(len(bench.position), bool), bench.heads, "k")
    bench.model = bench.model | {"weights_digest": "x" * 64}
    return f"K × {factor:.2f}"


@incident("V too wide, and K clips", "too-wide", "k-clips")
def _(bench: Bench) -> str:
    narrow, wide = bench.between(2, 4), bench.between(2**13, 2**15)
    bench.ship(times(times(bench.scales(), wide, "v"), 1 / narrow, "k"))
    return f"K ÷ {narrow:.2f}, V × {wide:,.0f}"


@incident("a workload's K and a position's V", "drift-workload", "drift-position")
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    one, other = bench.between(2, 4), bench.between(2.5, 4)
    bench.scale_values(one, bench.workload == "language", bench.pick(6), "k")
    bench.scale_values(other, bench.position >= 1024, bench.pick(6), "v")
    return f"language × {one:.2f}, from 1,024 × {other:.2f}"


@incident("a workload and a position in the same heads", "drift-workload", "drift-position")
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    factor = bench.between(2.5, 4)
    heads = bench.pick(6)
    bench.scale_values(factor, bench.workload == "language", heads, "k")
    bench.scale_values(factor, bench.position >= 1024, heads, "k")
    return f"6 heads × {factor:.2f}"


@incident("V heads in another order, and K clips", "heads-permuted", "k-clips")
def _(bench: Bench) -> str:
    rows = np.ones(len(bench.position), bool)
    for head in range(bench.num_heads):
        bench.scale_values(2.0**head, rows, [one for one in bench.heads if one[1] == head], "v")
    factor = bench.between(2, 4)
    scales = times(bench.scales(), 1 / factor, "k")
    bench.ship({key: v[1:] + v[:1] if key[1] == "v" else v for key, v in scales.items()})
    return f"K ÷ {factor:.2f}"


@incident("an unreachable channel, and drift with output", "ordinary-channels", "drift-output-length")
def _(bench: Bench) -> str:
    # V has no outliers: at a factor of 2 clipping costs too little of it to be called a fault.
    wide, factor = bench.between(2**14, 2**16), bench.between(2.5, 4)
    bench.widen_channel(wide, 0, 0)
    bench.ship(bench.scales())
    bench.scale_values(factor, bench.step >= 15, [(layer, 1) for layer in range(1, 5)], "v")
    return f"channel × {wide:,.0f}, V × {factor:.2f}"
