"""int4_per_token_head, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import DTYPE_GRIDS, as_dtype, extremes_of, rotate

_SMALLEST_SCALE = np.float32(1e-6)
_LARGEST_CODE = np.float32(15)
_ZERO_POINT_BITS = np.int32(0xF)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    signs, step, smallest_normal = parameters
    block = len(signs)
    inverse = np.float32(np.float32(1) / np.float32(block))
    for row in range(len(x)):
        y = restored[row]
        for start in range(0, len(y), block):
            for i in range(block):
                y[start + i] = np.float32(x[row, start + i] * signs[i])
        rotate(y, block)
        for i in range(len(y)):
            y[i] = as_dtype(y[i], step, smallest_normal)
        low, high = extremes_of(y)
        unit = max(np.float32(np.float32(high - low) / _LARGEST_CODE), _SMALLEST_SCALE)
        zero_point = _half_away(np.float32(-low / unit))
        stored = np.int32(np.float32(unit).view(np.int32) & ~_ZERO_POINT_BITS).view(np.float32)
        factor = np.float32(np.float32(1) / unit)
        for i in range(len(y)):
            code = _half_away(np.float32(np.float32(y[i] * factor) + zero_point))
            y[i] = np.float32(np.float32(code - zero_point) * stored)
        rotate(y, block)
        for start in range(0, len(y), block):
            for i in range(block):
                y[start + i] = np.float32(np.float32(y[start + i] * signs[i]) * inverse)


@numba.njit(nogil=True)
def _half_away(y: Any) -> Any:
    """Round to whole numbers, halves away from zero, and clamp to the codes."""
    whole = np.float32(np.int32(y + (np.float32(0.5) if y >= 0 else np.float32(-0.5))))
    return min(max(whole, np.float32(0)), _LARGEST_CODE)


def kernel(signs: Any, dtype: str) -> Kernel:
    """Return the kernel. signs: [block] float32, ±1. dtype: what the rotated vector is rounded to."""
    return Kernel(_fill, (signs, *DTYPE_GRIDS[dtype]))
