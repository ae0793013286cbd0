"""The scale of least squared error, found exactly over every scale that the stored dtype can represent.

Two facts bound the search. Values beyond the range cost at least (|x| − MAX·s)² each, a sum that only grows
as s shrinks: below the scale where it exceeds the best error so far nothing better can come. And a scale
without clipping loses to none of its multiples by a power of two, whose representable values are a subset of
its own: above the smallest scale without clipping one octave is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.calibration.bfloat16 import nearest_bfloat16
from kvtrace.calibration.cost import round_trip_errors
from kvtrace.calibration.error_curve import squared_errors
from kvtrace.numerics import find_engine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.calibration.magnitudes import Magnitudes

E4M3_MAX: Final = 448.0
SMALLEST_SCALE: Final = 2.0**-100
"""Far below any scale of real keys and values, far above the subnormals of bfloat16 and float32."""
_CLOSE: Final = 1 + 1e-6
"""Scales whose errors are this close are compared by the round trip itself."""


def least_error_scale(
    magnitudes: Magnitudes, *, engine: str = "vllm-cuda", dtype: str = "bfloat16", power_of_two: bool = False
) -> float:
    """Return the bfloat16 scale (or power of two) of least Σ (x − x̂)²; of equal ones, the widest.

    Raises ValueError: the group has no value other than 0, so every scale is as good.
    """
    if magnitudes.amax == 0:
        raise ValueError("there is no value other than 0")
    if magnitudes.amax <= E4M3_MAX * SMALLEST_SCALE:
        return SMALLEST_SCALE
    top = no_clip_scale(magnitudes.amax)
    tried, errors = [_grid(top, 2 * top, power_of_two)], []
    errors.append(_errors(magnitudes, tried[0], engine, dtype))
    low = top
    while low > SMALLEST_SCALE:
        high, low = low, low / 2
        scales = _grid(low, high, power_of_two)
        scales = scales[_clip_error_bound(magnitudes, scales) <= min(e.min() for e in errors)]
        if not len(scales):
            break
        tried.append(scales)
        errors.append(_errors(magnitudes, scales, engine, dtype))
    scale, error = np.concatenate(tried), np.concatenate(errors)
    close = np.sort(scale[error <= error.min() * _CLOSE])
    exact = round_trip_errors(magnitudes, close, engine=engine, dtype=dtype)
    return float(close[np.flatnonzero(exact == exact.min())[-1]])


def no_clip_scale(amax: float) -> float:
    """Return the smallest bfloat16 scale that covers amax > 0: 448 · scale ≥ amax.

    >>> no_clip_scale(448.0), no_clip_scale(449.0)
    (1.0, 1.0078125)
    """
    scale = float(nearest_bfloat16([amax / E4M3_MAX])[0])
    if scale * E4M3_MAX < amax:
        bits = np.array([scale], dtype=np.float32).view(np.uint32) + np.uint32(0x10000)
        scale = float(bits.view(np.float32)[0])
    return scale


def _grid(low: float, high: float, power_of_two: bool) -> NDArray[np.float64]:
    """Return the bfloat16 scales (or powers of two) in [low, high], ascending; both are bfloat16."""
    if power_of_two:
        exponents: NDArray[np.float64] = np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1.0)
        return np.exp2(exponents)
    first, last = (np.array([low, high], dtype=np.float32).view(np.uint32) >> 16).tolist()
    return (np.arange(first, last + 1, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


def _errors(
    magnitudes: Magnitudes, scales: NDArray[np.float64], engine: str, dtype: str
) -> NDArray[np.float64]:
    if not len(scales):
        return np.array([np.inf])
    if find_engine(engine).rounds_once(dtype):
        return squared_errors(magnitudes, scales)
    return round_trip_errors(magnitudes, scales, engine=engine, dtype=dtype)


def _clip_error_bound(magnitudes: Magnitudes, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ (|x| − MAX·s)² over |x| > MAX·s, less float rounding: no engine's error at s is smaller."""
    beyond = np.maximum(magnitudes.values[None, :] - E4M3_MAX * scales[:, None], 0)
    return np.asarray(beyond**2 @ magnitudes.counts * (1 - 1e-6), dtype=np.float64)
