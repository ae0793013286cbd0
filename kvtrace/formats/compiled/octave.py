"""The codings of octave_*, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import (
    energy_of,
    half,
    middles_of,
    normaliser,
    number_of_level,
    rotate,
    scale_by,
)

_BLOCK = 64
_SMALLEST = np.float32(1e-12)
_FIXED_POINT = np.float32(64)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    signs, block, keeps_length, parts, wide_dim, wide, narrow = parameters
    number = np.empty(x.shape[1], np.int32)
    for row in range(len(x)):
        y = restored[row]
        for i in range(len(y)):
            y[i] = np.float32(x[row, i] * signs[i])
        rotate(y, block)
        scale_by(y, keeps_length)
        for start in range(0, len(y), parts):
            part = y[start : start + parts]
            if start < wide_dim:
                _quantize(part, wide[0], wide[1], wide[2], number)
            else:
                _quantize(part, narrow[0], narrow[1], narrow[2], number)
        rotate(y, block)
        scale_by(y, keeps_length)
        for i in range(len(y)):
            y[i] = np.float32(y[i] * signs[i])


@numba.njit(nogil=True, error_model="numpy")
def _quantize(part: Any, levels: Any, middles: Any, unit: Any, number: Any) -> None:
    """Put the values read back in the place of the values; the scale keeps x · x̂ = |x|²."""
    energy = np.float32(energy_of(part))
    deviation = max(np.float32(np.sqrt(np.float32(energy / np.float32(len(part))))), _SMALLEST)
    scaled = np.empty(len(part), np.float32)
    for i in range(len(part)):
        scaled[i] = np.float32(np.float32(part[i] / deviation) * unit)
    number_of_level(scaled, middles, False, number)
    products = np.zeros(8)
    for start in range(0, len(part), 8):
        for lane in range(8):
            level = levels[number[start + lane]]
            products[lane] += np.float64(part[start + lane]) * np.float64(level)
            part[start + lane] = level
    product = products.sum()
    scale = np.float32(0)
    if product > 0:
        scale = np.float32(
            half(np.float32(np.float32(energy / np.float32(product)) * _FIXED_POINT)) / _FIXED_POINT
        )
    for i in range(len(part)):
        part[i] = np.float32(part[i] * scale)


def blocks_kernel(signs: Any, wide_dim: int, wide: Any, narrow: Any) -> Kernel:
    """Return the kernel of K in blocks of 64. wide, narrow: (levels, one standard deviation in them)."""
    quantizers = (_quantizer(*wide), _quantizer(*narrow))
    return Kernel(_fill, (signs, _BLOCK, normaliser(_BLOCK), _BLOCK, wide_dim, *quantizers))


def whole_kernel(signs: Any, block: int, levels: Any, unit: float) -> Kernel:
    """Return the kernel of vectors with one scale, rotated in blocks."""
    quantizer = _quantizer(levels, unit)
    return Kernel(_fill, (signs, block, normaliser(block), len(signs), 0, quantizer, quantizer))


def _quantizer(levels: Any, unit: float) -> tuple[Any, ...]:
    as_float = np.array(levels, np.float32)
    return as_float, middles_of(as_float), np.float32(unit)
