"""Faults of artifacts, and of what the engine made of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from incidents.bench import NUM_LAYERS, Bench, times
from incidents.planting import incident
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.save import SCALES_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.calibration.calibrate import ScaleSet

PER_TENSOR = Recipe(granularity="tensor")


def _ones(scales: ScaleSet) -> ScaleSet:
    return {key: tuple(1.0 for _ in values) for key, values in scales.items()}


@incident("engine used 1.0, shipped per tensor", "scales-not-loaded")
def _(bench: Bench) -> str:
    shipped = bench.scales(PER_TENSOR)
    bench.ship(shipped)
    bench.live = _ones(shipped)
    return "all layers"


@incident("engine used 1.0, shipped per head", "scales-not-loaded")
def _(bench: Bench) -> str:
    shipped = bench.scales(Recipe(headroom=2))
    bench.ship(shipped)
    bench.live = _ones(shipped)
    return "all layers"


@incident("engine used 1.0 in one layer", "scales-not-loaded")
def _(bench: Bench) -> str:
    shipped = bench.scales(PER_TENSOR)
    bench.ship(shipped)
    layer = int(bench.rng.integers(NUM_LAYERS))
    bench.live = {key: (1.0,) if key[0] == layer else values for key, values in shipped.items()}
    return f"layer {layer}"


@incident("another artifact's scales ran", "scales-not-loaded")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(PER_TENSOR))
    factor = bench.between(1.05, 4)
    bench.live = times(bench.scales(PER_TENSOR), factor)
    return f"× {factor:.2f}"


@incident("FP8 with default scales, none shipped", "scales-not-loaded")
def _(bench: Bench) -> str:
    bench.live = _ones(bench.scales(PER_TENSOR))
    return "all layers"


@incident("engine collapsed heads to their maximum", "per-head-collapsed")
def _(bench: Bench) -> str:
    shipped = bench.scales()
    bench.ship(shipped)
    bench.live = {key: (max(values),) * len(values) for key, values in shipped.items()}
    return "all layers"


@incident("a layer has no scale", "missing-layers")
def _(bench: Bench) -> str:
    layer = int(bench.rng.integers(NUM_LAYERS))
    scales = bench.scales(PER_TENSOR)
    bench.ship({key: values for key, values in scales.items() if key[0] != layer})
    return f"layer {layer}"


@incident("scales of an INT8 cache", "other-format")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(), "sound")
    path = bench.ship(bench.scales(PER_TENSOR), "int8")
    config = json.loads((path / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "int", "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": scheme,
    }
    (path / "config.json").write_text(json.dumps(config))
    return "ModelOpt's"


@incident("keys renamed", "unmatched-names")
def _(bench: Bench) -> str:
    path = bench.ship(bench.scales(PER_TENSOR))
    rename(path, "self_attn.k_scale", "self_attn.key_cache_scale")
    rename(path, "self_attn.v_scale", "self_attn.value_cache_scale")
    return "all layers"


@incident("a quantization method that loads none", "silent-default")
def _(bench: Bench) -> str:
    path = bench.ship(bench.scales(PER_TENSOR))
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "awq"
    (path / "config.json").write_text(json.dumps(config))
    return "awq"


@incident("scales stored inverted", "inverse-scales")
def _(bench: Bench) -> str:
    recipe = PER_TENSOR if bench.rng.random() < 0.5 else Recipe()
    bench.ship({key: tuple(1 / v for v in values) for key, values in bench.scales(recipe).items()})
    return recipe.granularity


@incident("K and V swapped", "kv-swapped")
def _(bench: Bench) -> str:
    factor = bench.between(3, 6)
    bench.scale_values(factor, np.ones(len(bench.position), bool), bench.heads, "k")
    swap = {"k": "v", "v": "k"}
    bench.ship({(layer, swap[tensor]): v for (layer, tensor), v in bench.scales().items()})
    return f"K {factor:.1f} × wider"


@incident("K heads in another order", "heads-permuted")
def _(bench: Bench) -> str:
    factor = _spread_heads(bench)
    bench.ship({key: v[1:] + v[:1] if key[1] == "k" else v for key, v in bench.scales().items()})
    return f"ranges {factor:.2f} × apart"


def _spread_heads(bench: Bench) -> float:
    """Give the heads of every layer different ranges, which a model's own heads may not have."""
    factor = bench.between(1.5, 2.5)
    for head in range(bench.num_heads):
        bench.scale_values(
            factor**head, np.ones(len(bench.position), bool), [(n, head) for n in range(NUM_LAYERS)]
        )
    return factor


@incident("a scale is 0, another artifact is sound", "unusable-values")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(), "sound")
    path = bench.ship(bench.scales(PER_TENSOR), "broken")
    file = path / SCALES_FILE
    file.write_bytes(file.read_bytes()[:-2] + b"\0\0")
    return "one scale"


@incident("scales of a model with more layers", "wrong-model")
def _(bench: Bench) -> str:
    bench.ship(bench.scales(), "sound")
    scales = bench.scales(PER_TENSOR)
    more = {(layer + NUM_LAYERS, tensor): v for (layer, tensor), v in scales.items()}
    bench.ship(scales | more, "other")
    config = bench.artifacts[-1] / "config.json"
    content = json.loads(config.read_text()) | {"num_hidden_layers": 2 * NUM_LAYERS}
    config.write_text(json.dumps(content))
    return f"{2 * NUM_LAYERS} layers"


@incident("all scales equal", "constant-scales")
def _(bench: Bench) -> str:
    widest = max(max(values) for values in bench.scales(PER_TENSOR).values())
    value = widest * bench.between(0.1, 1)
    bench.ship(dict.fromkeys(bench.scales(PER_TENSOR), (value,)))
    return f"{value:.3g}"


@incident("one scale for K and V far apart", "merged-kv")
def _(bench: Bench) -> str:
    factor = bench.between(2**13, 2**15)
    bench.scale_values(1 / factor, np.ones(len(bench.position), bool), bench.heads, "v")
    bench.ship(bench.scales(Recipe(merge_kv=True)))
    return f"{factor:,.0f} × apart"


@incident("keys calibrated before RoPE", "pre-rope-keys")
def _(bench: Bench) -> str:
    factor = bench.between(1.3, 1.41)
    hit = bench.pick(10)
    bench.ship(times(bench.scales(), 1 / factor, "k", hit))
    return f"{len(hit)} of {len(bench.heads)} heads ÷ {factor:.2f}"


@incident("an averaging observer", "ema-observer")
def _(bench: Bench) -> str:
    factor = bench.between(1.5, 2.5)
    bench.ship(times(bench.scales(), 1 / factor), observer="minmax")
    return f"÷ {factor:.2f}"


@incident("weights changed since the calibration", "stale-artifact")
def _(bench: Bench) -> str:
    bench.calibrated(Recipe())
    bench.model = bench.model | {"weights_digest": "x" * 64}
    return "weights"


@incident("tokenizer changed since the calibration", "stale-artifact")
def _(bench: Bench) -> str:
    bench.calibrated(Recipe(headroom=2))
    bench.model = bench.model | {"tokenizer_digest": "x" * 64}
    return "tokenizer"


@incident("scales edited after the calibration", "stale-artifact")
def _(bench: Bench) -> str:
    _double_last_scale(bench.calibrated(Recipe(headroom=4)))
    return "one scale × 2"


def _double_last_scale(path: Path) -> None:
    """Double one bfloat16 scale in place: one more in its exponent."""
    file = path / SCALES_FILE
    content = bytearray(file.read_bytes())
    number = int.from_bytes(content[-2:], "little") + (1 << 7)
    content[-2:] = number.to_bytes(2, "little")
    file.write_bytes(bytes(content))


def rename(path: Path, old: str, new: str) -> None:
    """Rename tensors in the header of a safetensors file."""
    file = path / SCALES_FILE
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].decode().replace(old, new).encode()
    header += b" " * (-len(header) % 8)
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
