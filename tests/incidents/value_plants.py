"""Faults of range: values that outgrew their scales, or scales that do not fit values."""

from __future__ import annotations

import json

import numpy as np

from incidents.bench import NUM_LAYERS, Bench, times
from incidents.planting import incident
from kvtrace.calibration.recipe import Recipe
from kvtrace.candidates import ServingSetup

PER_TENSOR = Recipe(granularity="tensor")


def _clip(bench: Bench, tensors: str, count: int, low: float, high: float) -> str:
    factor = bench.between(low, high)
    heads = bench.pick(count)
    bench.ship(times(bench.scales(), 1 / factor, tensors, heads))
    return f"{count} heads ÷ {factor:.2f}"


@incident("K of one head clips", "k-clips")
def _(bench: Bench) -> str:
    return _clip(bench, "k", 1, 2, 4)


@incident("K of some heads clips", "k-clips")
def _(bench: Bench) -> str:
    return _clip(bench, "k", 5, 1.8, 3)


@incident("K of all heads clips", "k-clips")
def _(bench: Bench) -> str:
    return _clip(bench, "k", len(bench.heads), 1.5, 8)


@incident("V of one head clips", "v-clips")
def _(bench: Bench) -> str:
    return _clip(bench, "v", 1, 2.5, 4)


@incident("V of all heads clips", "v-clips")
def _(bench: Bench) -> str:
    return _clip(bench, "v", len(bench.heads), 1.9, 8)


@incident("scales 8 times too small in effect", "constant-factor")
def _(bench: Bench) -> str:
    bench.live = times(bench.scales(PER_TENSOR), 1 / 8)
    bench.ship(bench.live)
    return "all ÷ 8"


@incident("one head sets the scale per tensor", "outlier-head")
def _(bench: Bench) -> str:
    factor = bench.between(2**13, 2**15)
    heads = bench.pick(2)
    bench.scale_values(factor, np.ones(len(bench.position), bool), heads, "k")
    bench.ship(bench.scales(PER_TENSOR))
    return f"{len(heads)} heads × {factor:,.0f}"


@incident("scales far too wide", "too-wide")
def _(bench: Bench) -> str:
    factor = bench.between(2**12.5, 2**15)
    bench.ship(times(bench.scales(), factor))
    return f"× {factor:,.0f}"


@incident("scales too wide in some heads", "too-wide")
def _(bench: Bench) -> str:
    factor = bench.between(2**13, 2**15)
    heads = bench.pick(3)
    bench.ship(times(bench.scales(), factor, "v", heads))
    return f"{len(heads)} heads × {factor:,.0f}"


@incident("a channel beyond what FP8 spans", "ordinary-channels")
def _(bench: Bench) -> str:
    factor = bench.between(2**14, 2**16)
    heads = bench.pick(2)
    for layer, head in heads:
        bench.widen_channel(factor, layer, head)
    bench.ship(bench.scales())
    return f"one channel in {len(heads)} heads × {factor:,.0f}"


def _drift(bench: Bench, rows: np.ndarray, count: int, low: float, high: float, tensors: str = "kv") -> str:
    bench.ship(bench.scales())
    factor = bench.between(low, high)
    bench.scale_values(factor, rows, bench.pick(count), tensors)
    return f"{count} heads × {factor:.2f}"


@incident("a workload outgrew its scales, all heads", "drift-workload")
def _(bench: Bench) -> str:
    name = str(bench.rng.choice(["code", "language", "chat"]))
    return f"{name}: {_drift(bench, bench.workload == name, len(bench.heads), 1.6, 4)}"


@incident("a workload outgrew its scales, K of some heads", "drift-workload")
def _(bench: Bench) -> str:
    name = str(bench.rng.choice(["code", "language"]))
    return f"{name}: {_drift(bench, bench.workload == name, 4, 1.6, 4, 'k')}"


@incident("the long workload outgrew its scales", "drift-workload")
def _(bench: Bench) -> str:
    return _drift(bench, bench.workload == "retrieval", 6, 1.8, 4)


@incident("values outgrow their scales with position", "drift-position")
def _(bench: Bench) -> str:
    first = int(bench.rng.choice([512, 1024, 2048]))
    return f"from {first:,}: {_drift(bench, bench.position >= first, 8, 2, 4)}"


@incident("V outgrows its scales beyond a position", "drift-position")
def _(bench: Bench) -> str:
    first = int(bench.rng.choice([1024, 2048]))
    return f"from {first:,}: {_drift(bench, bench.position >= first, 3, 2.5, 4, 'v')}"


@incident("values outgrow their scales with output length", "drift-output-length")
def _(bench: Bench) -> str:
    first = int(bench.rng.choice([15, 31]))
    return f"from {first}: {_drift(bench, bench.step >= first, 8, 2, 4)}"


@incident("decode outgrew its scales", "drift-output-length")
def _(bench: Bench) -> str:
    return _drift(bench, bench.step >= 0, 6, 2, 4, "k")


@incident("NaN in a layer", "nonfinite-values")
def _(bench: Bench) -> str:
    bench.ship(bench.scales())
    (layer, head), *_rest = bench.pick(1)
    rows = bench.rng.choice(len(bench.position), size=3, replace=False)
    bench.tensors[layer, "v"][rows, head, 0] = np.nan
    return f"3 vectors of layer {layer}"


@incident("too few requests", "coverage")
def _(bench: Bench) -> str:
    left = int(bench.rng.integers(2, 5))
    chosen = bench.rng.choice([one.request for one in bench.requests], size=left, replace=False)
    bench.keep(np.isin(bench.request_of_row, chosen))
    bench.ship(bench.scales(Recipe(headroom=2)))
    return f"{left} requests"


@incident("K clips, by the artifact's audit", "clipping", seen_by="scales")
def _(bench: Bench) -> str:
    return _clip(bench, "k", int(bench.rng.integers(1, 6)), 2, 4)


@incident("V clips, by the artifact's audit", "clipping", seen_by="scales")
def _(bench: Bench) -> str:
    return _clip(bench, "v", len(bench.heads), 2.5, 8)


@incident("far too wide, by the artifact's audit", "too-wide", seen_by="scales")
def _(bench: Bench) -> str:
    factor = bench.between(2**13, 2**15)
    bench.ship(times(bench.scales(), factor))
    return f"× {factor:,.0f}"


def _as_nvfp4(bench: Bench, factor: float) -> str:
    """Ship scales of an NVFP4 cache: so many times what just covers the largest value."""
    path = bench.ship(times(bench.scales(PER_TENSOR), factor / 6))
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "NVFP4",
    }
    (path / "config.json").write_text(json.dumps(config))
    return f"{factor:,.3g} × the natural ones"


@incident("NVFP4's global scales too narrow", "nvfp4-global-narrow", seen_by="scales")
def _(bench: Bench) -> str:
    return _as_nvfp4(bench, 1 / bench.between(4, 16))


@incident("NVFP4's global scales far too wide", "nvfp4-global-wide", seen_by="scales")
def _(bench: Bench) -> str:
    return _as_nvfp4(bench, bench.between(2**18, 2**20))


@incident(
    "FP8's scales as NVFP4's global ones",
    "nvfp4-global-of-fp8",
    seen_by="scales",
    control=lambda bench: _as_nvfp4(bench, 1.0),
)
def _(bench: Bench) -> str:
    return _as_nvfp4(bench, bench.between(4, 8))


@incident("1.0 in one layer, by the artifact's audit", "scales-not-loaded", seen_by="scales")
def _(bench: Bench) -> str:
    shipped = bench.scales(PER_TENSOR)
    bench.ship(shipped)
    layer = int(bench.rng.integers(NUM_LAYERS))
    bench.live = {key: (1.0,) if key[0] == layer else values for key, values in shipped.items()}
    return f"layer {layer}"


@incident("the engine's cache was fp8_e5m2", "e5m2-rounding")
def _(bench: Bench) -> str:
    bench.live = {key: (1.0,) * len(values) for key, values in bench.scales().items()}
    bench.fp8_dtype = "fp8_e5m2"
    bench.setup = ServingSetup("vllm-cuda", format="e5m2")
    return "e5m2"
