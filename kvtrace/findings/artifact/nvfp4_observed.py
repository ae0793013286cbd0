"""What an NVFP4 cache loses under shipped global scales: by rows, since 16 values make a block's scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.formats.nvfp4 import LARGEST_SCALE, Nvfp4

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvtrace.calibration.magnitudes import Group
    from kvtrace.findings.artifact.observed import Observed
    from kvtrace.trace.reader import Block

COVERED: Final = 6 * LARGEST_SCALE
"""Largest magnitude over the global scale: the largest code times the largest scale of a block."""
CLIPPED_FROM: Final = 7 * LARGEST_SCALE
_VECTORS_AT_ONCE: Final = 4_096


@dataclass(slots=True)
class GlobalCost:
    """One unit at its shipped global scale, and at the natural one, its largest magnitude / 2688."""

    times_natural: float
    sum_sq: float = 0.0
    sum_sq_error: float = 0.0
    sum_sq_natural_error: float = 0.0
    num_values: int = 0
    num_clipped: int = 0
    num_flushed: int = 0

    @property
    def relative_error(self) -> float:
        """Return Σ (x − x̂)² / Σ x²."""
        return self.sum_sq_error / self.sum_sq if self.sum_sq else 0.0

    @property
    def natural_error(self) -> float:
        """Return the same at the natural scale."""
        return self.sum_sq_natural_error / self.sum_sq if self.sum_sq else 0.0

    @property
    def excess(self) -> float:
        """Return the error in multiples of that at the natural scale."""
        return self.relative_error / self.natural_error if self.natural_error else 1.0


def global_costs(observed: Observed, scales: Mapping[Group, float]) -> dict[Group, GlobalCost]:
    """Return what each unit loses; every tensor concerned is read once more.

    scales: finite and > 0, of units that have a value other than 0. Vectors that NVFP4 does not take are left
    out. Raises IntegrityError: a chunk is damaged.
    """
    amax = {unit: observed.units[unit].amax for unit in scales}
    costs = {unit: GlobalCost(scale * COVERED / amax[unit]) for unit, scale in scales.items()}
    layers = {(layer, tensor) for layer, _, tensor in scales}
    for ref in observed.trace.block_refs():
        block = ref.load()
        if (block.layer.index, block.tensor) not in layers or Nvfp4().why_not(block.values.shape[2]):
            continue
        for place, head in enumerate(block.kv_heads):
            unit = (
                block.layer.index,
                head if observed.granularity == "attn_head" else 0,
                "k" if block.tensor == "k" else "v",
            )
            if unit in costs:
                _add(costs[unit], _float32(block, place), scales[unit], amax[unit] / COVERED)
    return {unit: cost for unit, cost in costs.items() if cost.num_values}


def _add(cost: GlobalCost, vectors: NDArray[np.float32], shipped: float, natural: float) -> None:
    for start in range(0, len(vectors), _VECTORS_AT_ONCE):
        x = np.ascontiguousarray(vectors[start : start + _VECTORS_AT_ONCE])
        restored, of_natural = (_restored(x, scale) for scale in (shipped, natural))
        wide = x.astype(np.float64)
        cost.sum_sq += float(np.sum(wide**2))
        cost.sum_sq_error += float(np.sum((wide - restored) ** 2))
        cost.sum_sq_natural_error += float(np.sum((wide - of_natural) ** 2))
        cost.num_values += x.size
        cost.num_clipped += int(np.count_nonzero(np.abs(x) > CLIPPED_FROM * np.float32(shipped)))
        cost.num_flushed += int(np.count_nonzero((restored == 0) & (x != 0)))


def _restored(x: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    restored = np.empty_like(x)
    Nvfp4().kernel(x.shape[1], "float32").fill(x, np.full(len(x), scale, np.float32), restored)
    return restored


def _float32(block: Block, place: int) -> NDArray[np.float32]:
    """Return one head's vectors, [row, head_dim]; NaN and inf, for which nothing is defined, as 0."""
    values = block.values[:, place]
    if block.layer.dtype == "bfloat16":
        x = (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        x = values.view(np.dtype(block.layer.dtype)).astype(np.float32)
    return np.where(np.isfinite(x), x, np.float32(0))
