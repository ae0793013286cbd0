"""Faults of the checkpoint that the scales lie in: changed weights, or content on which no engine starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from incidents.bench import NUM_LAYERS, Bench
from incidents.planting import incident
from kvtrace.calibration.recipe import Recipe
from kvtrace.scales.source import MANIFEST_FILE

if TYPE_CHECKING:
    from pathlib import Path

PER_TENSOR = Recipe(granularity="tensor")


@incident("weights differ from those of --against", "weights-changed")
def _(bench: Bench) -> str:
    count = int(bench.rng.integers(1, NUM_LAYERS + 1))
    bench.deploy(bench.scales(), bench.checkpoint("original"))
    bench.against = bench.checkpoint("tuned", num_changed=count)
    return f"1 value in {count} of {NUM_LAYERS} tensors"


@incident("tokenizer differs from that of --against", "stale-artifact")
def _(bench: Bench) -> str:
    original, bench.against = bench.checkpoint("original"), bench.checkpoint("tuned")
    (original / "tokenizer.json").write_text('{"version": "1.0"}')
    (bench.against / "tokenizer.json").write_text('{"version": "1.1"}')
    bench.deploy(bench.scales(), original)
    return "1 character"


@incident("chat template changed since the calibration", "stale-artifact")
def _(bench: Bench) -> str:
    bench.calibrated(Recipe(headroom=2))
    bench.model = bench.model | {"chat_template_digest": "x" * 64}
    return "chat template"


@incident("longer requests admitted than when calibrated", "stale-artifact")
def _(bench: Bench) -> str:
    manifest = bench.calibrated(Recipe(headroom=2)) / MANIFEST_FILE
    content = json.loads(manifest.read_text())
    admitted = content["model"]["max_model_len"]
    content["model"]["max_model_len"] = then = admitted // int(bench.rng.choice([2, 4, 16]))
    manifest.write_text(json.dumps(content))
    return f"{then:,}, now {admitted:,}"


@incident("scales of a model with other heads", "wrong-model")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(), "sound")
    more = int(bench.rng.integers(1, 4))
    path = bench.ship({key: values + values[:1] * more for key, values in bench.scales().items()}, "other")
    _edit(path, num_key_value_heads=bench.num_heads + more)
    return f"{bench.num_heads + more} heads"


@incident("a scheme that the engine refuses", "engine-crash")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(), "sound")
    refused = [("num_bits", 4), ("type", "int"), ("symmetric", False), ("strategy", "channel")]
    field, value = refused[int(bench.rng.integers(len(refused)))]
    bench.ship(bench.scales(PER_TENSOR), "broken", **{str(field): value})
    return f"{field} {value}"


@incident("scales whose shape the engine refuses", "engine-crash")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(PER_TENSOR), "sound")
    path = bench.ship(bench.scales(), "broken", strategy="tensor")
    if bench.rng.random() < 0.5:
        return "per head, declared per tensor"
    _edit(path, quantization_config={"quant_method": "fp8"})
    return "per head, method fp8"


@incident("a scale too large to be a range", "invalid-artifact")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(), "sound")
    scales = bench.scales(PER_TENSOR)
    layer, tensor = int(bench.rng.integers(NUM_LAYERS)), str(bench.rng.choice(["k", "v"]))
    scale = bench.between(1e36, 3e38)
    bench.ship(scales | {(layer, tensor): (scale,)}, "broken")
    return f"{tensor.upper()} of layer {layer}: {scale:.1g}"


@incident("stale, and V clips", "stale-artifact", "v-clips")
def _(bench: Bench) -> str:
    bench.calibrated(Recipe())
    factor = bench.between(2.5, 4)
    bench.scale_values(factor, np.ones(len(bench.position), bool), bench.pick(5), "v")
    bench.model = bench.model | {"tokenizer_digest": "x" * 64}
    return f"tokenizer, V of 5 heads × {factor:.2f}"


def _edit(path: Path, **fields: object) -> None:
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
