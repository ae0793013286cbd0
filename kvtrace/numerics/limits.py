"""The largest magnitude that a scale still covers, as a code of the captured dtype.

A vector is out of range exactly when its largest magnitude is: one integer per scale answers for all.
"""
# ruff: noqa: A002 -- `format` is the name users type

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.compiled import cache_write, is_flushed, is_in_range, is_unclipped
from kvtrace.numerics.engines import find_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from kvtrace.numerics.elementwise import RoundTrip
    from kvtrace.trace.format import StoredDtype

_IN_RANGE: Final = 0
_UNCLIPPED: Final = 1
_FLUSHED: Final = 2
_ON_TENSORS: Final[dict[int, Callable[[RoundTrip], Tensor]]] = {
    _IN_RANGE: lambda result: ~result.out_of_range,
    _UNCLIPPED: lambda result: ~result.clipped,
    _FLUSHED: lambda result: result.restored == 0,
}
_FP16_MANTISSA_BITS: Final = 10
_FP16_BIAS: Final = 15
_FLOAT32_BIAS: Final = 127


def max_in_range_code(
    scale: NDArray[np.floating[Any]], dtype: StoredDtype | str, *, engine: str, format: str
) -> NDArray[np.int32]:
    """Return the largest magnitude code with |float32(x) / scale| ≤ the format's maximum.

    scale: used as float32, any shape, > 0. Returns int32, the shape of `scale`.

    >>> code = max_in_range_code(np.array([1.0]), "bfloat16", engine="vllm-cuda", format="e4m3fn")
    >>> magnitudes_of(code, "bfloat16").tolist()
    [448.0]
    """
    return _largest(_IN_RANGE, scale, dtype, engine, format)


def max_unclipped_code(
    scale: NDArray[np.floating[Any]], dtype: StoredDtype | str, *, engine: str, format: str
) -> NDArray[np.int32]:
    """Return the largest magnitude code that the engine does not clip; else as `max_in_range_code`.

    >>> code = max_unclipped_code(np.array([1.0]), "bfloat16", engine="vllm-cuda", format="e4m3fn")
    >>> magnitudes_of(code, "bfloat16").tolist()
    [464.0]
    """
    return _largest(_UNCLIPPED, scale, dtype, engine, format)


def max_flushed_code(
    scale: NDArray[np.floating[Any]], dtype: StoredDtype | str, *, engine: str, format: str
) -> NDArray[np.int32]:
    """Return the largest magnitude code that comes back as 0; else as `max_in_range_code`.

    >>> code = max_flushed_code(np.array([1.0]), "bfloat16", engine="vllm-cuda", format="e4m3fn")
    >>> magnitudes_of(code, "bfloat16").item() == 2.0**-10
    True
    """
    return _largest(_FLUSHED, scale, dtype, engine, format)


def _largest(
    question: int, scale: NDArray[np.floating[Any]], dtype: StoredDtype | str, engine: str, format: str
) -> NDArray[np.int32]:
    scales = np.ascontiguousarray(scale, np.float32)
    if find_engine(engine).kernel is None:
        codes = _largest_on_tensors(_ON_TENSORS[question], scales.reshape(-1), dtype, engine, format)
        return codes.reshape(scales.shape)
    found = np.empty(scales.size, np.int32)
    write = cache_write(engine, format, dtype)
    _bisect(question, scales.reshape(-1), write, _DTYPE_NUMBER[dtype], MAX_FINITE_CODE[dtype], found)
    return found.reshape(scales.shape)


def _largest_on_tensors(
    within: Callable[[RoundTrip], Tensor],
    scale: NDArray[np.float32],
    dtype: StoredDtype | str,
    engine: str,
    format: str,
) -> NDArray[np.int32]:
    """Return the largest magnitude code for which `within` holds, by bisection; 0 counts as a yes.

    scale: [num_scales]. within: of a round trip, one bool per scale, true up to one magnitude.
    """
    import torch  # it takes over a second to import

    from kvtrace.numerics.elementwise import captured_tensor, round_trip

    low = np.zeros(len(scale), np.int32)
    high = np.full(len(scale), MAX_FINITE_CODE[dtype], np.int32)
    while (low < high).any():
        middle = (low.astype(np.int64) + high + 1) // 2
        x = captured_tensor(magnitudes_of(middle, dtype), dtype)
        holds = within(round_trip(x, torch.from_numpy(scale), engine=engine, format=format)).numpy()
        low = np.where(holds, middle, low).astype(np.int32)
        high = np.where(holds, high, np.maximum(middle - 1, low)).astype(np.int32)
    return low


_DTYPE_NUMBER: Final = {"bfloat16": 0, "float16": 1, "float32": 2}


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _bisect(question: int, scales: Any, write: Any, dtype: int, max_code: int, found: Any) -> None:
    """Write the largest code with a yes: quotients grow with the magnitude. Zero counts as a yes."""
    for i in range(len(scales)):
        low, high = 0, max_code
        while low < high:
            middle = (low + high + 1) // 2
            x = _magnitude(middle, dtype)
            if question == _IN_RANGE:
                within = is_in_range(x, scales[i], write)
            elif question == _UNCLIPPED:
                within = is_unclipped(x, scales[i], write)
            else:
                within = is_flushed(x, scales[i], write)
            if within:
                low = middle
            else:
                high = middle - 1
        found[i] = low


@numba.njit(nogil=True)
def _magnitude(code: Any, dtype: Any) -> Any:
    """Return what `captured.magnitudes_of` gives for one code."""
    if dtype == 0:
        return np.int32(code << 16).view(np.float32)
    if dtype == 1:
        if code < 1 << _FP16_MANTISSA_BITS:
            return np.float32(code * 2.0**-24)
        shifted = (code << 13) + ((_FLOAT32_BIAS - _FP16_BIAS) << 23)
        return np.int32(shifted).view(np.float32)
    return np.int32(code).view(np.float32)
