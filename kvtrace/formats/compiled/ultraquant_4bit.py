"""ultraquant_4bit, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import (
    absmax_of,
    middles_of,
    normaliser,
    number_of_level,
    rotate,
    scale_by,
)

_GROUP = 32
_FACTOR = np.float32(0.156)
_LEVELS = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MIDDLES = middles_of(_LEVELS)
_MANTISSA = np.int32(0x7FFFFF)
_ROOT_OF_TWO = np.int32(0x3504F3)
"""Mantissa bits of the largest float32 below √2: above it the logarithm rounds up."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    rotated, keeps_length = parameters
    number = np.empty(_GROUP, np.int32)
    for row in range(len(x)):
        y = restored[row]
        y[:] = x[row]
        if rotated:
            rotate(y, len(y))
            scale_by(y, keeps_length)
        for start in range(0, len(y), _GROUP):
            _quantize(y[start : start + _GROUP], number)
        if rotated:
            rotate(y, len(y))
            scale_by(y, keeps_length)


@numba.njit(nogil=True)
def _quantize(group: Any, number: Any) -> None:
    power = _power_of_two(np.float32(_FACTOR * absmax_of(group)))
    if power == 0:
        group[:] = 0
        return
    for i in range(len(group)):
        group[i] = np.float32(group[i] / power)
    number_of_level(group, _MIDDLES, False, number)
    for i in range(len(group)):
        group[i] = np.float32(_LEVELS[number[i]] * power)


@numba.njit(nogil=True)
def _power_of_two(value: Any) -> Any:
    """Return 2^floor(log2(value) + 0.5), 0 of 0."""
    bits = np.float32(value).view(np.int32)
    if bits == 0:
        return np.float32(0)
    exponent = (bits >> 23) - 127 + (np.int32(bits & _MANTISSA) > _ROOT_OF_TWO)
    stored = min(max(int(exponent) + 127, 1), 254)
    return np.int32(stored << 23).view(np.float32)


def kernel(rotated: bool, head_dim: int) -> Kernel:
    """Return the kernel. rotated: of K."""
    return Kernel(_fill, (rotated, normaliser(head_dim)))
