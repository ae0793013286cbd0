"""Steps that several kernels share, on single float32 values and on vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FLOAT32_MANTISSA_BITS: Final = 23
_SIGN: Final = np.int32(-(1 << 31))
_NO_SIGN: Final = np.int32(0x7FFFFFFF)
_EXPONENT: Final = np.int32(0x7F800000)


def grid_of(mantissa_bits: int, min_exponent: int) -> tuple[np.int32, np.int32]:
    """Return a float format as `rounded` takes it: a step of exponents, bits of its smallest normal value."""
    step = np.int32((_FLOAT32_MANTISSA_BITS - mantissa_bits) << _FLOAT32_MANTISSA_BITS)
    return step, np.array([2.0**min_exponent], np.float32).view(np.int32)[0]


DTYPE_GRIDS: Final = {
    "bfloat16": grid_of(7, -126),
    "float16": grid_of(10, -14),
    "float32": (np.int32(0), np.int32(0)),
}
"""Of the captured dtypes; float32, which is not rounded, has the step 0."""
_E4M3: Final = grid_of(3, -6)
_E2M1: Final = grid_of(1, 0)
_EIGHT: Final = 8
_HALF: Final = DTYPE_GRIDS["float16"]
_HALF_LIMIT: Final = np.float32(65520)


@numba.njit(nogil=True)
def rounded(magnitude: Any, step: Any, smallest_normal: Any) -> Any:
    """Round a magnitude half to even to a grid: adding a power of two pushes out the bits below it."""
    exponent = np.int32(np.float32(magnitude).view(np.int32) & _EXPONENT)
    exponent = exponent if exponent > smallest_normal else smallest_normal  # noqa: FURB136 -- max() widens it
    pusher = np.float32(np.int32(exponent + step).view(np.float32))
    return np.float32(np.float32(magnitude + pusher) - pusher)


@numba.njit(nogil=True)
def with_sign(magnitude: Any, of: Any) -> Any:
    """Return a magnitude with another value's sign."""
    sign = np.int32(np.float32(of).view(np.int32) & _SIGN)
    return np.int32(np.float32(magnitude).view(np.int32) | sign).view(np.float32)


@numba.njit(nogil=True)
def magnitude_of(value: Any) -> Any:
    """Return |value|."""
    return np.int32(np.float32(value).view(np.int32) & _NO_SIGN).view(np.float32)


@numba.njit(nogil=True)
def e4m3(value: Any) -> Any:
    """Return the value rounded to e4m3 half to even, saturating at 448."""
    magnitude = magnitude_of(value)
    magnitude = magnitude if magnitude < np.float32(448) else np.float32(448)  # noqa: FURB136
    return with_sign(rounded(magnitude, _E4M3[0], _E4M3[1]), value)


@numba.njit(nogil=True)
def e2m1(value: Any) -> Any:
    """Return the value rounded to e2m1 half to even, saturating at 6."""
    magnitude = magnitude_of(value)
    magnitude = magnitude if magnitude < np.float32(6) else np.float32(6)  # noqa: FURB136
    return with_sign(rounded(magnitude, _E2M1[0], _E2M1[1]), value)


@numba.njit(nogil=True)
def half(value: Any) -> Any:
    """Return the value rounded to float16, inf beyond it."""
    magnitude = magnitude_of(value)
    if magnitude >= _HALF_LIMIT:
        return with_sign(np.float32(np.inf), value)
    return with_sign(rounded(magnitude, _HALF[0], _HALF[1]), value)


@numba.njit(nogil=True)
def as_dtype(value: Any, step: Any, smallest_normal: Any) -> Any:
    """Return the value rounded to a captured dtype. step, smallest_normal: of `DTYPE_GRIDS`."""
    if step == 0:
        return np.float32(value)
    return with_sign(rounded(magnitude_of(value), step, smallest_normal), value)


@numba.njit(nogil=True)
def absmax_of(vector: Any) -> Any:
    """Return the largest magnitude. vector: float32, contiguous; its bits order like magnitudes."""
    bits = vector.view(np.int32)
    largest = np.int32(0)
    for i in range(len(bits)):
        one = np.int32(bits[i] & _NO_SIGN)
        largest = one if one > largest else largest  # noqa: FURB136 -- max() widens it
    return np.int32(largest).view(np.float32)


@numba.njit(nogil=True, fastmath={"nnan", "nsz"})
def extremes_of(vector: Any) -> Any:
    """Return the smallest and the largest value."""
    low, high = vector[0], vector[0]
    for i in range(len(vector)):
        low = vector[i] if vector[i] < low else low  # noqa: FURB136 -- as vector instructions
        high = vector[i] if vector[i] > high else high  # noqa: FURB136
    return low, high


@numba.njit(nogil=True)
def energy_of(vector: Any) -> Any:
    """Return Σ x² in float64, in eight parts that are added last."""
    parts = np.zeros(8)
    for start in range(0, len(vector) - 7, 8):
        for lane in range(8):
            value = np.float64(vector[start + lane])
            parts[lane] += value * value
    for i in range(len(vector) // 8 * 8, len(vector)):
        parts[0] += np.float64(vector[i]) * np.float64(vector[i])
    return parts.sum()


@numba.njit(nogil=True)
def rotate(vector: Any, block: Any) -> None:
    """Multiply each block by Sylvester's Hadamard matrix in place, not normalised: sums and differences."""
    half_size = 1
    if block >= _EIGHT:
        for start in range(0, len(vector), _EIGHT):
            _rotate_eight(vector, start)
        half_size = _EIGHT
    while half_size < block:
        for start in range(0, len(vector), 2 * half_size):
            for i in range(start, start + half_size):
                low, high = vector[i], vector[i + half_size]
                vector[i] = np.float32(low + high)
                vector[i + half_size] = np.float32(low - high)
        half_size *= 2


@numba.njit(nogil=True)
def _rotate_eight(vector: Any, start: Any) -> None:
    """Do the first three rounds of `rotate` on eight values: loops this short cost more than their sums."""
    a, b, c, d = vector[start], vector[start + 1], vector[start + 2], vector[start + 3]
    e, f, g, h = vector[start + 4], vector[start + 5], vector[start + 6], vector[start + 7]
    a, b, c, d = np.float32(a + b), np.float32(a - b), np.float32(c + d), np.float32(c - d)
    e, f, g, h = np.float32(e + f), np.float32(e - f), np.float32(g + h), np.float32(g - h)
    a, c, b, d = np.float32(a + c), np.float32(a - c), np.float32(b + d), np.float32(b - d)
    e, g, f, h = np.float32(e + g), np.float32(e - g), np.float32(f + h), np.float32(f - h)
    vector[start], vector[start + 4] = np.float32(a + e), np.float32(a - e)
    vector[start + 1], vector[start + 5] = np.float32(b + f), np.float32(b - f)
    vector[start + 2], vector[start + 6] = np.float32(c + g), np.float32(c - g)
    vector[start + 3], vector[start + 7] = np.float32(d + h), np.float32(d - h)


@numba.njit(nogil=True)
def number_of_level(vector: Any, middles: Any, ties_go_up: Any, number: Any) -> None:
    """Write the number of middles below each value to `number`, [head_dim] int32: the index of its level.

    Middle by middle, so that the inner loop becomes vector instructions.
    """
    number[: len(vector)] = 0
    for middle in middles:
        if ties_go_up:
            for i in range(len(vector)):
                number[i] += np.int32(vector[i] >= middle)
        else:
            for i in range(len(vector)):
                number[i] += np.int32(vector[i] > middle)


@numba.njit(nogil=True)
def scale_by(vector: Any, factor: Any) -> None:
    """Multiply a vector by a number in place."""
    for i in range(len(vector)):
        vector[i] = np.float32(vector[i] * factor)


def normaliser(size: int) -> np.float32:
    """Return what makes `rotate` keep lengths."""
    return np.float32(1 / np.sqrt(size))


def middles_of(levels: NDArray[Any]) -> NDArray[np.float32]:
    """Return where one level ends and the next begins. levels: float32, ascending."""
    middles: NDArray[np.float32] = ((levels[1:] + levels[:-1]) / np.float32(2)).astype(np.float32)
    return middles
