"""lmdeploy_int8 and lmdeploy_int4, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import DTYPE_GRIDS, as_dtype, extremes_of


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    largest, step, smallest_normal = parameters
    for row in range(len(x)):
        low, high = extremes_of(x[row])
        if low == high:
            restored[row] = x[row]
            continue
        unit = np.float32(np.float32(high - low) / largest)
        zero_point = np.float32(-low / unit)
        stored = as_dtype(unit, step, smallest_normal)
        offset = as_dtype(zero_point, step, smallest_normal)
        for i in range(x.shape[1]):
            place = np.float32(np.float32(np.float32(x[row, i] / unit) + zero_point) + np.float32(0.5))
            code = min(max(np.float32(np.int32(place)), np.float32(0)), largest)
            restored[row, i] = np.float32(np.float32(code - offset) * stored)


def kernel(bits: int, dtype: str) -> Kernel:
    """Return the kernel. dtype: of the scale and the zero-point in the cache."""
    return Kernel(_fill, (np.float32(2**bits - 1), *DTYPE_GRIDS[dtype]))
