"""The levels of a Lloyd-Max quantizer, as TurboQuant computes them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

_WIDTH: Final = 3.5
"""The levels start evenly over this many standard deviations on either side; the outer cells reach three
times as far."""
_INTERVALS: Final = 200
_MOST_ROUNDS: Final = 200
_TOLERANCE: Final = 1e-10
_SMALLEST_MASS: Final = 1e-15


@lru_cache(maxsize=32)
def centroids(head_dim: int, bits: int) -> NDArray[np.float32]:
    """Return the 2^bits levels for coordinates of a unit vector, N(0, 1 / head_dim), ascending.

    Source: vLLM 0.32, `layers/quantization/turboquant/centroids.py`: integrals by 200 trapezoids, and the
    levels of the round before the one that changed too little.

    >>> [f"{level * 8:.4f}" for level in centroids(64, 3)[4:]]
    ['0.2450', '0.7556', '1.3432', '2.1503']
    """
    deviation = float(np.sqrt(1 / head_dim))
    reach, count = _WIDTH * deviation, 2**bits
    levels = -reach + 2 * reach * (np.arange(count) + 0.5) / count
    for _ in range(_MOST_ROUNDS):
        edges = np.concatenate([[-3 * reach], (levels[1:] + levels[:-1]) / 2, [3 * reach]])
        x = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] / _INTERVALS * np.arange(_INTERVALS + 1)
        density = np.exp(-x * x * head_dim / 2)
        mass, moment = _trapezoids(density), _trapezoids(x * density)
        small = mass * np.sqrt(head_dim / (2 * np.pi)) * (edges[1:] - edges[:-1]) <= _SMALLEST_MASS
        moved = np.where(small, levels, moment / np.where(mass > 0, mass, 1))
        if np.abs(moved - levels).max() < _TOLERANCE:
            break
        levels = moved
    rounded: NDArray[np.float32] = levels.astype(np.float32)
    return rounded


def _trapezoids(values: NDArray[Any]) -> NDArray[Any]:
    """Return the mean over each row's trapezoids, without their width."""
    total: NDArray[Any] = (values.sum(-1) - (values[:, 0] + values[:, -1]) / 2) / _INTERVALS
    return total
