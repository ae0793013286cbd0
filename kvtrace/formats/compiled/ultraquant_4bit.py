"""ultraquant_4bit, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import absmax_of, magnitude_of, normaliser, rotate, scale_by, with_sign

_GROUP = 32
_FACTOR = np.float32(0.156)
_LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
_CLIPS_BEYOND = np.float32(7)
_MANTISSA = np.int32(0x7FFFFF)
_ROOT_OF_TWO = np.int32(0x3504F3)
"""Mantissa bits of the largest float32 below √2: above it the logarithm rounds up."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(x: Any, scale: Any, parameters: Any, restored: Any, beyond: Any) -> None:  # noqa: ARG001
    rotated, keeps_length = parameters
    for row in range(len(x)):
        y = restored[row]
        y[:] = x[row]
        if rotated:
            rotate(y, len(y))
            scale_by(y, keeps_length)
        beyond[row] = 0
        for start in range(0, len(y), _GROUP):
            _quantize(y[start : start + _GROUP], beyond[row])
        if rotated:
            rotate(y, len(y))
            scale_by(y, keeps_length)


@numba.njit(nogil=True)
def _quantize(group: Any, beyond: Any) -> None:
    power = _power_of_two(np.float32(_FACTOR * absmax_of(group)))
    if power == 0:
        group[:] = 0
        return
    for i in range(len(group)):
        y = np.float32(group[i] / power)
        magnitude, index = magnitude_of(y), 0
        # Ties go to the lower value: of a negative one, to the larger magnitude.
        if y < 0:
            for middle in _MIDDLES:
                index += magnitude >= middle
        else:
            for middle in _MIDDLES:
                index += magnitude > middle
        found = np.float32(with_sign(_LEVELS[index], y) * power)
        if magnitude > _LEVELS[-1]:
            beyond[0] += 1
        if magnitude > _CLIPS_BEYOND:
            beyond[1] += 1
            beyond[2] += (np.float64(group[i]) - np.float64(found)) ** 2
        group[i] = found


@numba.njit(nogil=True)
def _power_of_two(value: Any) -> Any:
    """Return 2^floor(log2(value) + 0.5), 0 of 0."""
    bits = np.float32(value).view(np.int32)
    if bits == 0:
        return np.float32(0)
    exponent = (bits >> 23) - 127 + (np.int32(bits & _MANTISSA) > _ROOT_OF_TWO)
    exponent = min(max(exponent, -126), 127)
    return np.int32((exponent + 127) << 23).view(np.float32)


def kernel(rotated: bool, head_dim: int) -> Kernel:  # noqa: FBT001 -- the coding's one field
    """Return the kernel. rotated: of K."""
    return Kernel(_fill, (rotated, normaliser(head_dim)))
