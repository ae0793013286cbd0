"""Squared error of many scales at once, from prefix sums instead of a round trip per value.

FP8 has 127 magnitudes, so a scale cuts the ascending values into 127 runs, each with one restored value v; a
run's Σ (x − v)² is Σx² − 2vΣx + v²·n. One scale then costs 127 look-ups however many values there are. Where
the engine's float32 quotient falls on the other side of a midpoint than the exact one, both codes are equally
far, so sums differ from the round trip by rounding alone; ties between scales are settled by the round trip
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.calibration.magnitudes import Magnitudes


def squared_errors(magnitudes: Magnitudes, scales: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return Σ (x − x̂)² of each scale, for engines that divide in float32 and round to nearest.

    scales: [num_scales], > 0.

    >>> from kvtrace.calibration.magnitudes import Magnitudes
    >>> m = Magnitudes(np.array([1.0, 500.0]), np.array([3, 2]))
    >>> squared_errors(m, np.array([1.0])).tolist()  # 500 is clipped to 448, twice
    [5408.0]
    """
    steps = e4m3fn_magnitudes()
    # Values from bounds[i − 1] to bounds[i] take steps[i]; what is beyond the last bound saturates.
    bounds = (steps[:-1] + steps[1:]) / 2
    x, n = magnitudes.values, magnitudes.counts.astype(np.float64)
    sums = np.stack([np.cumsum(np.concatenate([[0.0], n * x**power])) for power in (0, 1, 2)])
    ends = np.searchsorted(x, (bounds[None, :] * scales[:, None]).ravel()).reshape(len(scales), len(bounds))
    edges = np.concatenate(
        [np.zeros((len(scales), 1), np.int64), ends, np.full((len(scales), 1), len(x), np.int64)], axis=1
    )
    count, total, square = (np.diff(s[edges], axis=1) for s in sums)
    restored = steps[None, :] * scales[:, None]
    errors: NDArray[np.float64] = (square - 2 * restored * total + restored**2 * count).sum(axis=1)
    return np.maximum(errors, 0.0)


def e4m3fn_magnitudes() -> NDArray[np.float64]:
    """Return the 127 finite magnitudes of E4M3FN, ascending from 0 to 448."""
    code = np.arange(E4M3FN.max_code + 1)
    exponent = np.maximum(code >> E4M3FN.mantissa_bits, 1) - E4M3FN.exponent_bias
    fraction = (code & 7) + 8 * (code >= 8)
    values: NDArray[np.float64] = fraction * np.exp2(exponent - float(E4M3FN.mantissa_bits))
    return values
