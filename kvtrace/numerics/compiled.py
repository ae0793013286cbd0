"""The same cache write on magnitudes, compiled for the CPU: what `casts` does on tensors, without torch.

The rules are those of the engine's file. Both are compared with an oracle, and with each other, over every
16-bit pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numba
import numpy as np

from kvtrace.errors import InputError
from kvtrace.numerics.engines import find_pair

if TYPE_CHECKING:
    from kvtrace.numerics.engines.engine import Engine, Kernel

LANES: Final = 32
"""Scales that are worked on at once: a constant, so that the loops over them become vector instructions."""

_DIVIDE: Final = 0
_DIVIDE_AND_ROUND: Final = 1
_MULTIPLY_AND_TRUNCATE: Final = 2
_KINDS: Final[dict[Kernel, int]] = {
    "divide": _DIVIDE,
    "divide-and-round": _DIVIDE_AND_ROUND,
    "multiply-and-truncate": _MULTIPLY_AND_TRUNCATE,
}

_MANTISSA_BITS: Final = {"bfloat16": 7, "float16": 10, "float32": 23}
_MIN_EXPONENT: Final = {"bfloat16": -126, "float16": -14, "float32": -126}
_FLOAT32_MANTISSA_BITS: Final = 23
_EXPONENT_MASK: Final = np.int32(0x7F800000)


class CacheWrite(NamedTuple):
    """An engine's cache write of one captured dtype in one format, as the kernels take it.

    A grid is a float format as two int32: what to add to a float32's exponent bits to get a number whose
    last place is the format's, and the bits of its smallest normal number.
    """

    kind: int
    max_value: np.float32
    clip_threshold: np.float32
    grid: tuple[np.int32, np.int32]
    """Of the FP8 format."""
    quotient_grid: tuple[np.int32, np.int32]
    """Of the captured dtype, for engines that round to it."""
    low_bits: np.int32
    """The bits of a float32 that the FP8 format lacks."""
    smallest_normal: np.float32
    smallest_subnormal: np.float32
    truncates_sum: bool
    """How vLLM's CPU operator makes subnormals: see `engines.vllm_cpu`."""


def cache_write(engine: str, fmt: str, dtype: str) -> CacheWrite:
    """Return the write path. Raises InputError: an unknown name, a pair not offered, or no compiled form."""
    found, found_format = find_pair(engine, fmt)
    grid = _grid(found_format.mantissa_bits, found_format.min_exponent)
    return CacheWrite(
        kind=_kind(found, dtype),
        max_value=np.float32(found_format.max_value),
        clip_threshold=np.float32(found_format.clip_threshold(found.rounding)),
        grid=grid,
        quotient_grid=_grid(_MANTISSA_BITS[dtype], _MIN_EXPONENT[dtype]),
        low_bits=np.int32((1 << (_FLOAT32_MANTISSA_BITS - found_format.mantissa_bits)) - 1),
        smallest_normal=np.float32(2.0**found_format.min_exponent),
        smallest_subnormal=np.float32(found_format.smallest_subnormal),
        truncates_sum=found_format.name == "e4m3fn",
    )


def _kind(engine: Engine, dtype: str) -> int:
    if engine.kernel is None:
        raise InputError(
            f"engine {engine.name} has no compiled cache write; `kvtrace.numerics.error_counts` counts its "
            "errors on tensors"
        )
    if engine.kernel == "divide-and-round" and dtype not in engine.rounds_quotient:
        return _DIVIDE
    return _KINDS[engine.kernel]


def _grid(mantissa_bits: int, min_exponent: int) -> tuple[np.int32, np.int32]:
    step = np.int32((_FLOAT32_MANTISSA_BITS - mantissa_bits) << _FLOAT32_MANTISSA_BITS)
    return step, np.array([2.0**min_exponent], np.float32).view(np.int32)[0]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def fill_errors(magnitude: Any, scale: Any, write: CacheWrite, out: Any) -> None:
    """Write (x − x̂)² of every magnitude and scale to `out`, [num_magnitudes, LANES] float64.

    magnitude: float32, ≥ 0. scale: [LANES] float32. One loop per kind: a branch inside would cost the
    vector instructions.
    """
    if write.kind == _DIVIDE:
        for i in range(len(magnitude)):
            x = magnitude[i]
            for lane in range(LANES):
                y = _at_most(np.float32(x / scale[lane]), np.float32(2) * write.max_value)
                out[i, lane] = _error(x, scale[lane], _rounded(y, write.grid), write.max_value)
    elif write.kind == _DIVIDE_AND_ROUND:
        for i in range(len(magnitude)):
            x = magnitude[i]
            for lane in range(LANES):
                y = _at_most(np.float32(x / scale[lane]), np.float32(2) * write.max_value)
                y = _rounded(y, write.quotient_grid)
                out[i, lane] = _error(x, scale[lane], _rounded(y, write.grid), write.max_value)
    else:
        for i in range(len(magnitude)):
            x = magnitude[i]
            for lane in range(LANES):
                y = np.float32(x * np.float32(np.float32(1) / scale[lane]))
                y = _truncated(_at_most(y, write.max_value), write)
                out[i, lane] = _error(x, scale[lane], y, write.max_value)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def is_in_range(x: Any, scale: Any, write: CacheWrite) -> Any:
    """Return whether |float32(x) / scale| ≤ the format's maximum. x: float32, ≥ 0."""
    return np.float32(x / scale) <= write.max_value


@numba.njit(nogil=True, cache=True, error_model="numpy")
def is_unclipped(x: Any, scale: Any, write: CacheWrite) -> Any:
    """Return whether the engine does not clip x."""
    if write.kind == _MULTIPLY_AND_TRUNCATE:
        return np.float32(x * np.float32(np.float32(1) / scale)) < write.clip_threshold
    y = _at_most(np.float32(x / scale), np.float32(2) * write.max_value)
    if write.kind == _DIVIDE_AND_ROUND:
        y = _rounded(y, write.quotient_grid)
    return y <= write.clip_threshold


@numba.njit(nogil=True, cache=True, error_model="numpy")
def is_flushed(x: Any, scale: Any, write: CacheWrite) -> Any:
    """Return whether x comes back as 0."""
    if write.kind == _MULTIPLY_AND_TRUNCATE:
        y = np.float32(x * np.float32(np.float32(1) / scale))
        restored = _truncated(_at_most(y, write.max_value), write)
    else:
        y = _at_most(np.float32(x / scale), np.float32(2) * write.max_value)
        if write.kind == _DIVIDE_AND_ROUND:
            y = _rounded(y, write.quotient_grid)
        restored = _rounded(y, write.grid)
    return np.float32(restored * scale) == 0


@numba.njit(nogil=True)
def _at_most(y: Any, limit: Any) -> Any:
    """Return the smaller; the limit where y is NaN, which only 0 · inf is, and the CPU operator takes so."""
    return y if y < limit else limit  # noqa: FURB136 -- min() is not defined so for NaN


@numba.njit(nogil=True)
def _rounded(y: Any, grid: Any) -> Any:
    """Round y half to even to a grid: adding a power of two pushes out the bits below its last place."""
    exponent = np.int32(np.float32(y).view(np.int32) & _EXPONENT_MASK)
    exponent = exponent if exponent > grid[1] else grid[1]  # noqa: FURB136 -- max() widens it
    pusher = np.float32(np.int32(exponent + grid[0]).view(np.float32))
    return np.float32(np.float32(y + pusher) - pusher)


@numba.njit(nogil=True)
def _truncated(y: Any, write: Any) -> Any:
    """Truncate y toward zero to the FP8 format."""
    normal = _without(y, write.low_bits)
    if write.truncates_sum:
        below = np.float32(
            _without(np.float32(y + write.smallest_normal), write.low_bits) - write.smallest_normal
        )
    else:
        below = np.float32(
            np.float32(np.floor(np.float32(y / write.smallest_subnormal))) * write.smallest_subnormal
        )
    return normal if y >= write.smallest_normal else below


@numba.njit(nogil=True)
def _without(y: Any, low_bits: Any) -> Any:
    return np.float32(np.int32(np.float32(y).view(np.int32) & ~low_bits).view(np.float32))


@numba.njit(nogil=True)
def _error(x: Any, scale: Any, rounded: Any, max_value: Any) -> Any:
    restored = np.float32(_at_most(rounded, max_value) * scale)
    difference = np.float64(x) - np.float64(restored)
    return difference * difference
