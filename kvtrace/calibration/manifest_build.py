"""From a calibration to the manifest that is written beside its scales."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.calibration.dataset import calibrated_prompts
from kvtrace.calibration.holdout_error import TensorCost, tensor_costs
from kvtrace.calibration.manifest import (
    Manifest,
    ManifestDataset,
    ManifestEvaluation,
    ManifestGroup,
    ManifestModel,
    ManifestRecipe,
    ManifestTrace,
)
from kvtrace.version import __version__

if TYPE_CHECKING:
    from typing import Literal

    from kvtrace.calibration.calibrate import Calibration


def manifest_of(calibration: Calibration) -> Manifest:
    """Return the manifest; its scale hash is filled in when the scales are written."""
    return Manifest(
        kvtrace_version=__version__,
        created_at=time.time(),
        model=ManifestModel.model_validate(calibration.model.model_dump()),
        dataset=_dataset(calibration),
        recipe=ManifestRecipe(**asdict(calibration.recipe)),
        libraries={
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": version("numba"),
        },
        groups=tuple(
            ManifestGroup(
                layer=layer,
                kv_head=head,
                tensor="k" if tensor == "k" else "v",
                calibrated_amax=magnitudes.amax,
                num_values=magnitudes.num_values,
                scale=calibration.scale_of((layer, head, tensor)),
            )
            for (layer, head, tensor), magnitudes in sorted(calibration.calibrated.items())
        ),
        evaluation=tuple(_evaluation(calibration)),
    )


def _dataset(calibration: Calibration) -> ManifestDataset:
    dataset = calibration.dataset
    return ManifestDataset(
        traces=tuple(
            ManifestTrace(name=t.name, trace_id=t.record.trace_id, digest=t.digest)
            for t in calibration.traces
        ),
        **asdict(calibration.rules),
        duplicates_comparable=dataset.duplicates_comparable,
        calibration=dataset.calibration,
        held_out=dataset.held_out,
        prompts=calibrated_prompts(dataset),
    )


def _evaluation(calibration: Calibration) -> list[ManifestEvaluation]:
    sides: list[tuple[Literal["calibration", "held_out"], list[TensorCost]]] = [
        ("calibration", _costs(calibration, held_out=False))
    ]
    if calibration.held_out:
        sides.append(("held_out", _costs(calibration, held_out=True)))
    return [
        ManifestEvaluation(
            rows=rows,
            worst_layer=cost.worst[0],
            worst_kv_head=cost.worst[1],
            **{
                name: value for name, value in asdict(cost).items() if name in ManifestEvaluation.model_fields
            },
        )
        for rows, costs in sides
        for cost in costs
    ]


def _costs(calibration: Calibration, *, held_out: bool) -> list[TensorCost]:
    groups = calibration.held_out if held_out else calibration.calibrated
    return tensor_costs(
        groups or {}, calibration.scale_of, engine=calibration.recipe.engine, dtype=calibration.model.dtype
    )
