"""The codings of turboquant_*, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import (
    e4m3,
    energy_of,
    extremes_of,
    half,
    middles_of,
    normaliser,
    number_of_level,
    rotate,
    scale_by,
)

_SMALLEST_SCALE = np.float32(1e-8)
_NORM_GUARD = np.float32(1e-8)
_LENGTH_GUARD = np.float32(1e-16)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _unscaled(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    for row in range(len(x)):
        for i in range(x.shape[1]):
            restored[row, i] = e4m3(x[row, i])


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _lloyd_max(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    levels, middles, keeps_length = parameters
    number = np.empty(x.shape[1], np.int32)
    for row in range(len(x)):
        y = restored[row]
        norm = np.float32(np.sqrt(np.float32(energy_of(x[row]))))
        divisor = np.float32(norm + _NORM_GUARD)
        for i in range(len(y)):
            y[i] = np.float32(x[row, i] / divisor)
        rotate(y, len(y))
        scale_by(y, keeps_length)
        number_of_level(y, middles, True, number)
        for i in range(len(y)):
            y[i] = levels[number[i]]
        length = np.float32(np.sqrt(np.float32(np.float32(energy_of(y)) + _LENGTH_GUARD)))
        for i in range(len(y)):
            y[i] = np.float32(y[i] / length)
        rotate(y, len(y))
        stored = half(norm)
        for i in range(len(y)):
            y[i] = np.float32(stored * np.float32(y[i] * keeps_length))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _uniform(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    (largest,) = parameters
    for row in range(len(x)):
        low, high = extremes_of(x[row])
        unit = max(np.float32(np.float32(high - low) / largest), _SMALLEST_SCALE)
        stored, offset = half(unit), half(low)
        for i in range(x.shape[1]):
            place = np.float32(np.float32(np.float32(x[row, i] - low) / unit) + np.float32(0.5))
            code = min(np.float32(np.int32(place)), largest)
            restored[row, i] = np.float32(np.float32(code * stored) + offset)


def unscaled_kernel() -> Kernel:
    """Return the kernel of e4m3 without a scale."""
    return Kernel(_unscaled, ())


def lloyd_max_kernel(levels: Any, head_dim: int) -> Kernel:
    """Return the kernel of Lloyd-Max codes. levels: [2^bits] float32, ascending."""
    return Kernel(_lloyd_max, (levels, middles_of(levels), normaliser(head_dim)))


def uniform_kernel(bits: int) -> Kernel:
    """Return the kernel of uniform codes."""
    return Kernel(_uniform, (np.float32(2**bits - 1),))
