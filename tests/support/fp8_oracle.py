"""FP8 written a second time, in numpy and float64, from the rules alone: what the tests compare kvtrace with.

A format is its 128 non-negative values in code order; rounding is a search among them. Nothing is shared with
`kvtrace.numerics`, which works on bits and on torch's casts.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Grid:
    """Non-negative finite values in code order, the code of NaN, and whether −0 has a code."""

    values: np.ndarray
    nan_code: int
    has_negative_zero: bool


def _grid(mantissa_bits: int, bias: int, num_finite: int, nan_code: int, has_negative_zero: bool) -> Grid:
    codes = np.arange(num_finite)
    exponent, mantissa = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    fraction = mantissa / 2**mantissa_bits
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    return Grid(values, nan_code, has_negative_zero)


GRIDS = {
    "e4m3fn": _grid(3, 7, 127, 0x7F, True),  # 0x7F is NaN
    "e5m2": _grid(2, 15, 124, 0x7F, True),  # 0x7C is inf, above it NaN
    "e4m3fnuz": _grid(3, 8, 128, 0x80, False),
}
# The value after the last one, had the format room for it: where truncation would leave the maximum.
NEXT_VALUE = {"e4m3fn": 480.0, "e5m2": 65536.0, "e4m3fnuz": 256.0}


def values_of_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    """uint16 bits of bfloat16 or float16 → float32."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


ENGINES = ("vllm-cuda", "vllm-triton", "vllm-cpu", "vllm-rocm", "sglang")
"""Those whose rules are written here; an engine with other rules has an oracle in a test of its own."""


def quotient(x: np.ndarray, scale: np.float32, engine: str, dtype: str) -> np.ndarray:
    """x over scale as the engine rounds it, float32."""
    with np.errstate(all="ignore"):
        if engine == "vllm-cpu":
            return x * (np.float32(1) / scale)
        y = x / scale
        if engine == "sglang" and dtype == "bfloat16":
            return y.astype(ml_dtypes.bfloat16).astype(np.float32)
        if engine in ("sglang", "vllm-rocm") and dtype == "float16":
            return y.astype(np.float16).astype(np.float32)
        return y


def codes_of(y: np.ndarray, engine: str, fmt: str) -> np.ndarray:
    """float32 → uint8 codes, saturating."""
    grid = GRIDS[fmt]
    magnitude = np.abs(y.astype(np.float64))
    if engine == "vllm-cpu":
        if fmt == "e4m3fn":  # subnormals go through a float32 sum with the smallest normal value
            small = np.float32(2.0**-6)
            summed = (np.abs(y) + small).astype(np.float64) - 2.0**-6
            magnitude = np.where(magnitude < 2.0**-6, summed, magnitude)
        code = np.searchsorted(grid.values, magnitude, side="right") - 1
        code = np.where(np.isnan(y), len(grid.values) - 1, code)
        return (code | np.where(y < 0, 0x80, 0)).astype(np.uint8)
    middles = (grid.values[1:] + grid.values[:-1]) / 2
    code = np.searchsorted(middles, magnitude, side="left")  # a tie stays with the lower neighbour …
    tie = np.isin(magnitude, middles)
    code = np.where(tie & (code % 2 == 1), code + 1, code)  # … unless that one is odd
    negative = np.signbit(y) & (grid.has_negative_zero | (code > 0))
    return np.where(np.isnan(y), grid.nan_code, code | np.where(negative, 0x80, 0)).astype(np.uint8)


def decode(codes: np.ndarray, fmt: str) -> np.ndarray:
    """uint8 codes of finite values → float64."""
    magnitude = GRIDS[fmt].values[codes & 0x7F]
    return np.where(codes & 0x80, -magnitude, magnitude)


@dataclass(frozen=True)
class Outcome:
    """What became of each value; masks are False where x is not finite."""

    restored: np.ndarray
    out_of_range: np.ndarray
    clipped: np.ndarray
    flushed: np.ndarray


def outcome(x: np.ndarray, scale: np.float32, engine: str, fmt: str, dtype: str) -> Outcome:
    """x: float32 values of `dtype`."""
    grid, finite = GRIDS[fmt], np.isfinite(x)
    x = np.where(finite, x, np.float32(0))
    y = quotient(x, scale, engine, dtype)
    with np.errstate(all="ignore"):
        restored = decode(codes_of(y, engine, fmt), fmt).astype(np.float32) * scale
        out_of_range = np.abs(x / scale) > grid.values[-1]
    if engine == "vllm-cpu":
        clipped = np.abs(y) >= NEXT_VALUE[fmt]
    else:
        clipped = np.abs(y) > (grid.values[-1] + NEXT_VALUE[fmt]) / 2
    flushed = (x != 0) & (restored == 0)
    return Outcome(restored, out_of_range & finite, clipped & finite, flushed & finite)
