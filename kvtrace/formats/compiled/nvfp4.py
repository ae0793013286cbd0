"""nvfp4 and nvfp4_4over6, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.formats.compiled.steps import absmax_of, e2m1, e4m3

_BLOCK = 16
_SIXTH = np.float32(np.float32(1) / np.float32(6))
_QUARTER = np.float32(0.25)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill(x: Any, scale: Any, parameters: Any, restored: Any) -> None:
    (tries_four,) = parameters
    other = np.empty(_BLOCK, np.float32)
    for row in range(len(x)):
        whole = scale[row]
        inverse = np.float32(np.float32(1) / whole)
        again = np.float32(np.float32(1) / inverse)
        for start in range(0, x.shape[1], _BLOCK):
            block, out = x[row, start : start + _BLOCK], restored[row, start : start + _BLOCK]
            absmax = absmax_of(block)
            six = e4m3(np.float32(inverse * np.float32(absmax * _SIXTH)))
            _write(block, six, whole, again, out)
            if tries_four:
                _write(block, e4m3(np.float32(inverse * np.float32(absmax * _QUARTER))), whole, again, other)
                if _squares(block, other) < _squares(block, out):
                    out[:] = other


@numba.njit(nogil=True)
def _write(block: Any, block_scale: Any, whole: Any, again: Any, out: Any) -> None:
    factor = np.float32(0)
    if block_scale != 0:
        factor = np.float32(np.float32(1) / np.float32(block_scale * again))
    for i in range(_BLOCK):
        code = e2m1(np.float32(block[i] * factor))
        out[i] = np.float32(np.float32(code * block_scale) * whole)


@numba.njit(nogil=True)
def _squares(block: Any, out: Any) -> Any:
    total = np.float32(0)
    for i in range(_BLOCK):
        difference = np.float32(out[i] - block[i])
        total = np.float32(total + np.float32(difference * difference))
    return total


def kernel(tries_four: bool) -> Kernel:
    """Return the kernel. tries_four: of nvfp4_4over6."""
    return Kernel(_fill, (tries_four,))
