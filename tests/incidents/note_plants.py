"""What is worth a note and never more: nothing is wrong, and the verdict must say so and name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from incidents.bench import Bench, times
from incidents.planting import incident
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.save import SCALES_FILE

if TYPE_CHECKING:
    from pathlib import Path


def _store(path: Path, num_bfloat16: int) -> None:
    """Store the first scales in bfloat16 and the others in float32."""
    stored = load_file(path / SCALES_FILE)
    kinds = [torch.bfloat16] * num_bfloat16 + [torch.float32] * (len(stored) - num_bfloat16)
    changed = {name: stored[name].to(kind) for name, kind in zip(sorted(stored), kinds, strict=True)}
    save_file(changed, path / SCALES_FILE)


def _in_float32(bench: Bench) -> str:
    _store(bench.ship(bench.scales()), 0)
    return "none"


@incident("scales stored in bfloat16", "bf16-rounding", control=_in_float32)
def _(bench: Bench) -> str:
    scales = bench.scales()
    count = int(bench.rng.integers(1, len(scales) + 1))
    _store(bench.ship(scales), count)
    return f"{count} of {len(scales)} scales"


def _somewhat_narrow(bench: Bench) -> str:
    bench.ship(times(bench.scales(), 1 / 1.25))
    return "÷ 1.25"


@incident("no other scale would do better", "rounding-floor", control=_somewhat_narrow)
def _(bench: Bench) -> str:
    factor = bench.between(1, 64)
    bench.ship(times(bench.scales(Recipe("mse")), factor))
    return f"best scales × {factor:.1f}"


def _other_weights(bench: Bench) -> str:
    bench.deploy(bench.scales(), bench.checkpoint("original"))
    bench.against = bench.checkpoint("tuned", num_changed=1)
    return "1 value"


@incident("weights equal those of --against", "weights-equal", control=_other_weights)
def _(bench: Bench) -> str:
    bench.deploy(bench.scales(), bench.checkpoint("original"))
    bench.against = bench.checkpoint("tuned")
    return "all tensors"


def _calibrated_on_all(bench: Bench) -> str:
    bench.calibrated(Recipe(headroom=4))
    return "all rows"


@incident("calibrated on short positions", "short-calibration", control=_calibrated_on_all)
def _(bench: Bench) -> str:
    length = int(bench.rng.choice([256, 512, 1024]))
    bench.calibrated(Recipe(headroom=4), DatasetRules(max_position=length))
    return f"below position {length:,}"


@incident("a workload was not calibrated on", "outside-envelope", control=_calibrated_on_all)
def _(bench: Bench) -> str:
    left_out = str(bench.rng.choice(["code", "language", "chat"]))
    known = tuple(sorted({str(name) for name in bench.workload} - {left_out}))
    bench.calibrated(Recipe(headroom=4), DatasetRules(workloads=known))
    return left_out


def _beside(bench: Bench, *cache_dtypes: str) -> str:
    """Ship sound scales, and compare cache formats with them."""
    bench.ship(bench.scales(Recipe(headroom=2)))
    bench.cache_dtypes = cache_dtypes
    return ", ".join(cache_dtypes) or "none"


@incident(
    "fp8_e5m2 compared", "e5m2-stored-as-e4m3", control=lambda bench: _beside(bench, "int8_per_token_head")
)
def _(bench: Bench) -> str:
    return _beside(bench, "fp8_e5m2")


@incident("nvfp4 compared", "output-rounded-to-fp8", control=lambda bench: _beside(bench, "fp8_e5m2"))
def _(bench: Bench) -> str:
    return _beside(bench, "nvfp4")
