"""fp8_per_token_head and int8_per_token_head, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import absmax_of, e4m3

_SMALLEST_SCALE = np.float32(1e-6)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fp8(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    for row in range(len(x)):
        step = max(np.float32(absmax_of(x[row]) / np.float32(448)), _SMALLEST_SCALE)
        factor = np.float32(np.float32(1) / step)
        for i in range(x.shape[1]):
            restored[row, i] = np.float32(e4m3(np.float32(x[row, i] * factor)) * step)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _int8(x: Any, scale: Any, parameters: Any, restored: Any) -> None:  # noqa: ARG001
    for row in range(len(x)):
        step = max(np.float32(absmax_of(x[row]) / np.float32(127)), _SMALLEST_SCALE)
        factor = np.float32(np.float32(1) / step)
        for i in range(x.shape[1]):
            y = np.float32(x[row, i] * factor)
            # |y| is at most 127 but for a last digit, so the clamp of the engine changes nothing.
            code = np.int32(y + (np.float32(0.5) if y >= 0 else np.float32(-0.5)))
            restored[row, i] = np.float32(np.float32(code) * step)


def kernel(codes: str) -> Kernel:
    """Return the kernel of a cache with scales per token and head. codes: e4m3fn or int8."""
    return Kernel(_int8 if codes == "int8" else _fp8, ())
