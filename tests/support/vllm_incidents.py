"""Deployments that went wrong, as checkpoints: made of scales that fit, each with how it is served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvtrace.calibration.save import SCALES_FILE, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Scales = dict[tuple[int, str], list[float]]

MISSING_LAYER: Final = 7


def _times(factor: float) -> Callable[[Scales], Scales]:
    return lambda fitting: {key: [factor * one for one in values] for key, values in fitting.items()}


def _swapped(fitting: Scales) -> Scales:
    return {(layer, t): fitting[layer, "v" if t == "k" else "k"] for layer, t in fitting}


def _one_missing(fitting: Scales) -> Scales:
    return {key: values for key, values in fitting.items() if key[0] != MISSING_LAYER}


CHANGED: Final[dict[str, Callable[[Scales], Scales]]] = {
    "8 times too small": _times(1 / 8),
    "swapped": _swapped,
    "not loaded": lambda fitting: fitting,
    "a layer is missing": _one_missing,
    "16 times too wide": _times(16),
}
E5M2: Final = "e5m2 at 1.0"
INCIDENTS: Final = (*CHANGED, E5M2)


def write_incident(name: str, folder: Path, model: Path, fitting: Scales) -> tuple[Path, str]:
    """Write the checkpoint of an incident into `folder`; return it and the cache dtype that serves it."""
    if name == E5M2:
        return model, "fp8_e5m2"
    folder.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder, model, CHANGED[name](fitting))
    if name == "not loaded":  # vLLM opens only the files that the index names
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        content["weight_map"] = {n: file for n, file in content["weight_map"].items() if file != SCALES_FILE}
        index.write_text(json.dumps(content))
    return folder, "fp8"
