"""What a format loses, summed over vectors: compiled, one cell and head after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from kvtrace.formats.compiled.steps import absmax_of, magnitude_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_COUNTS = 3
"""Out of range, clipped, flushed."""
NUM_SQUARES = 2
"""Σ (x − x̂)², and that of clipped values."""


def add_errors(
    x: NDArray[Any],
    restored: NDArray[Any],
    limits: NDArray[Any],
    place: NDArray[Any],
    counts: NDArray[Any],
    squares: NDArray[Any],
) -> None:
    """Add what became of some vectors to the sums of their places.

    x and restored: [num_vectors, head_dim] float32, finite. limits: [num_vectors, 2] float32, the magnitudes
    beyond which a value is out of range and clipped; inf: never. place: [num_vectors] int64, of the sums.
    counts: [num_places, 3] int64. squares: [num_places, 2] float64.
    """
    # The kernel indexes without bounds checks.
    assert x.shape == restored.shape == (len(place), x.shape[1]), "not one vector restored for each"
    assert limits.shape == (len(x), 2), "not two limits for each vector"
    assert counts.shape[1:] == (NUM_COUNTS,), "not three counts for each place"
    assert squares.shape == (len(counts), NUM_SQUARES), "not two squares for each place"
    assert place.min(initial=0) >= 0, "a place before the first"
    assert place.max(initial=0) < max(1, len(counts)), "a place beyond the last"
    _add(x, restored, limits, place, counts, squares)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add(x: Any, restored: Any, limits: Any, place: Any, counts: Any, squares: Any) -> None:
    parts = np.zeros(8)
    for row in range(len(x)):
        at, width = place[row], x.shape[1]
        for i in range(width):
            counts[at, 2] += np.int32((restored[row, i] == 0) & (x[row, i] != 0))
        parts[:] = 0
        for start in range(0, width - 7, 8):
            for lane in range(8):
                lost = np.float64(x[row, start + lane]) - np.float64(restored[row, start + lane])
                parts[lane] += lost * lost
        for i in range(width // 8 * 8, width):
            lost = np.float64(x[row, i]) - np.float64(restored[row, i])
            parts[0] += lost * lost
        squares[at, 0] += parts.sum()
        if absmax_of(x[row]) > limits[row, 0]:
            for i in range(width):
                magnitude = magnitude_of(x[row, i])
                counts[at, 0] += magnitude > limits[row, 0]
                if magnitude > limits[row, 1]:
                    counts[at, 1] += 1
                    lost = np.float64(x[row, i]) - np.float64(restored[row, i])
                    squares[at, 1] += lost * lost
