"""What a scale costs on counted magnitudes: clipped, flushed, squared error, split into its causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.numerics.captured import magnitudes_of
from kvtrace.numerics.error_counts import error_counts
from kvtrace.numerics.limits import max_flushed_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.calibration.magnitudes import Magnitudes
    from kvtrace.numerics.counted import CountedErrors
    from kvtrace.trace.format import StoredDtype


@dataclass(frozen=True, slots=True)
class ScaleCost:
    """Costs of several scales on one group. All arrays are [num_scales]; sums are over finite values."""

    scales: NDArray[np.float64]
    num_values: int
    num_out_of_range: NDArray[np.int64]
    num_clipped: NDArray[np.int64]
    num_flushed: NDArray[np.int64]
    sum_sq_signal: float
    sum_sq_error: NDArray[np.float64]
    """Σ (x − x̂)²"""
    sum_sq_clip_error: NDArray[np.float64]
    """The part of it over clipped values."""
    sum_sq_flush_error: NDArray[np.float64]
    """The part of it over flushed values."""

    @property
    def relative_error(self) -> NDArray[np.float64]:
        """Return Σ (x − x̂)² / Σ x²; 0 where every value is 0."""
        return self.sum_sq_error / self.sum_sq_signal if self.sum_sq_signal else np.zeros(len(self.scales))


def scale_cost(
    magnitudes: Magnitudes,
    scales: NDArray[np.floating[Any]] | list[float],
    *,
    engine: str = "vllm-cuda",
    dtype: StoredDtype | str = "bfloat16",
) -> ScaleCost:
    """Return what each scale costs on a group of values.

    scales: [num_scales], > 0, used as float32. dtype: the captured dtype, which some engines divide in.
    Rounding is symmetric in every engine, so magnitudes stand for values of both signs.
    """
    wanted: NDArray[np.float64] = np.asarray(scales, dtype=np.float64)
    found = _errors(magnitudes, wanted, engine, dtype)
    last = magnitudes_of(max_flushed_code(wanted, dtype, engine=engine, format="e4m3fn"), dtype)
    # A flushed value's error is the value.
    squares = np.concatenate([[0.0], np.cumsum(magnitudes.values**2 * magnitudes.counts)])
    return ScaleCost(
        scales=wanted,
        num_values=magnitudes.num_values,
        num_out_of_range=found.counts[0, :, 0],
        num_clipped=found.counts[1, :, 0],
        num_flushed=found.counts[2, :, 0],
        sum_sq_signal=magnitudes.sum_sq,
        sum_sq_error=found.squares[0, :, 0],
        sum_sq_clip_error=found.squares[1, :, 0],
        sum_sq_flush_error=squares[np.searchsorted(magnitudes.values, last, side="right")],
    )


def round_trip_errors(
    magnitudes: Magnitudes,
    scales: NDArray[np.float64],
    *,
    engine: str = "vllm-cuda",
    dtype: StoredDtype | str = "bfloat16",
) -> NDArray[np.float64]:
    """Return Σ (x − x̂)² of each scale alone: the same sums as `scale_cost`, for searches over many scales."""
    return _errors(magnitudes, scales, engine, dtype).squares[0, :, 0]


def _errors(
    magnitudes: Magnitudes, scales: NDArray[np.float64], engine: str, dtype: StoredDtype | str
) -> CountedErrors:
    num_magnitudes = len(magnitudes.values)
    return error_counts(
        magnitudes.values.astype(np.float32),
        np.arange(num_magnitudes, dtype=np.uint32),
        magnitudes.counts.astype(np.float64),
        np.array([0, num_magnitudes]),
        scales.astype(np.float32),
        engine=engine,
        format="e4m3fn",
        dtype=dtype,
    )
