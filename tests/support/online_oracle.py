"""What an engine that chooses a scale for every token and head stores, in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.fp8_oracle import GRIDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

FP8, INT8 = "fp8-per-token-head", "int8-per-token-head"


def restored_by_rule(x: NDArray[Any], policy: str) -> NDArray[Any]:
    """x: one vector, float32. The rule in numpy: scale from the absmax, reciprocal, rounding."""
    finite = x[np.isfinite(x)]
    largest = np.abs(finite).max(initial=0).astype(np.float32)
    scale = max(largest / np.float32(448 if policy == FP8 else 127), np.float32(1e-6))
    y = x * (np.float32(1) / scale)
    if policy == INT8:
        codes = np.where(np.isfinite(y), np.sign(y) * np.floor(np.abs(y) + np.float32(0.5)), 0)
        return codes.clip(-127, 127).astype(np.float32) * scale
    grid = GRIDS["e4m3fn"].values
    nearest = np.abs(np.abs(y.astype(np.float64))[:, None] - grid)
    best = nearest.min(1, keepdims=True)
    even = np.where(nearest == best, np.arange(len(grid)) % 2, 2).argmin(1)
    return (np.sign(y) * grid[even]).astype(np.float32) * scale
