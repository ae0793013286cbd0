"""What a scale costs on counted magnitudes: clipped, flushed, squared error, split into its causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from kvtrace.numerics import quantize, round_trip
from kvtrace.numerics.casts import magnitudes_of_codes
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.scales.magnitudes import Magnitudes

_BATCH_VALUES: Final = 4_000_000
"""Elements evaluated at once: some 100 MB of work space."""


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
    dtype: str = "bfloat16",
) -> ScaleCost:
    """Return what each scale costs on a group of values.

    scales: [num_scales], > 0, used as float32. dtype: the captured dtype, which some engines divide in.
    Rounding is symmetric in every engine, so magnitudes stand for values of both signs.
    """
    wanted: NDArray[np.float64] = np.asarray(scales, dtype=np.float64)
    x = torch.from_numpy(magnitudes.values).to(getattr(torch, dtype))
    counts = torch.from_numpy(magnitudes.counts)
    values = torch.from_numpy(magnitudes.values)
    sums: list[NDArray[np.float64]] = []
    step = max(1, _BATCH_VALUES // max(1, len(x)))
    for start in range(0, len(wanted), step):
        batch = torch.from_numpy(wanted[start : start + step].astype(np.float32)).unsqueeze(1)
        trip = round_trip(x.unsqueeze(0), batch, engine=engine)
        weighted = (values - trip.restored.double()) ** 2 * counts
        sums.append(
            torch.stack(
                [
                    (trip.out_of_range * counts).sum(1).double(),
                    (trip.clipped * counts).sum(1).double(),
                    (trip.flushed * counts).sum(1).double(),
                    weighted.sum(1),
                    (weighted * trip.clipped).sum(1),
                    (weighted * trip.flushed).sum(1),
                ]
            ).numpy()
        )
    table = np.concatenate(sums, axis=1) if sums else np.zeros((6, 0))
    return ScaleCost(
        scales=wanted,
        num_values=magnitudes.num_values,
        num_out_of_range=table[0].astype(np.int64),
        num_clipped=table[1].astype(np.int64),
        num_flushed=table[2].astype(np.int64),
        sum_sq_signal=magnitudes.sum_sq,
        sum_sq_error=table[3],
        sum_sq_clip_error=table[4],
        sum_sq_flush_error=table[5],
    )


def round_trip_errors(
    magnitudes: Magnitudes, scales: NDArray[np.float64], *, engine: str = "vllm-cuda", dtype: str = "bfloat16"
) -> NDArray[np.float64]:
    """Return Σ (x − x̂)² of each scale alone: the same sums as `scale_cost`, for searches over many scales."""
    x = torch.from_numpy(magnitudes.values).to(getattr(torch, dtype)).unsqueeze(0)
    values, counts = torch.from_numpy(magnitudes.values), torch.from_numpy(magnitudes.counts).double()
    step = max(1, _BATCH_VALUES // max(1, len(values)))
    sums = []
    for start in range(0, len(scales), step):
        batch = torch.from_numpy(scales[start : start + step].astype(np.float32)).unsqueeze(1)
        codes = quantize(x, batch, engine=engine)
        restored = magnitudes_of_codes(codes & 0x7F, E4M3FN) * batch
        sums.append(((values - restored.double()) ** 2 @ counts).numpy())
    return np.concatenate(sums) if sums else np.empty(0)
