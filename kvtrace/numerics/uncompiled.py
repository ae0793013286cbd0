"""What `counted` and `limits` give, for engines without a compiled form: by the round trip on tensors.

Slower by an order of magnitude; the squared sums may differ from a compiled form's in their last bits.
"""
# ruff: noqa: A002 -- `format` is the name users type

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.counted import CountedErrors
from kvtrace.numerics.elementwise import round_trip

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from kvtrace.numerics.elementwise import RoundTrip
    from kvtrace.trace.format import StoredDtype


def counted_errors(
    magnitude: NDArray[np.float32],
    place: NDArray[np.uint32],
    count: NDArray[np.float64],
    start: NDArray[np.int64],
    scale: NDArray[np.float32],
    *,
    engine: str,
    format: str,
    dtype: StoredDtype | str,
) -> CountedErrors:
    """Return what each scale does to the values of each cell; arguments as in `error_counts.error_counts`."""
    num_cells = len(start) - 1
    cell = np.repeat(np.arange(num_cells), np.diff(start))
    x = _captured(magnitude, dtype)
    counts = np.zeros((3, len(scale), num_cells), np.int64)
    squares = np.zeros((2, len(scale), num_cells))
    for number, one in enumerate(scale.tolist()):
        result = round_trip(x, one, engine=engine, format=format)
        error = (x.double() - result.restored.double()).square_()
        for kind, mask in enumerate((result.out_of_range, result.clipped, result.flushed)):
            weights = count * mask.numpy()[place]
            counts[kind, number] = np.bincount(cell, weights, num_cells).round()
        for kind, part in enumerate((error, error * result.clipped)):
            squares[kind, number] = np.bincount(cell, count * part.numpy()[place], num_cells)
    return CountedErrors(counts, squares)


def largest_code(
    within: Callable[[RoundTrip], Tensor],
    scale: NDArray[np.float32],
    dtype: StoredDtype | str,
    *,
    engine: str,
    format: str,
) -> NDArray[np.int32]:
    """Return the largest magnitude code for which `within` holds, by bisection; 0 counts as a yes.

    scale: [num_scales]. within: of a round trip, one bool per scale, true up to one magnitude.
    """
    low = np.zeros(len(scale), np.int32)
    high = np.full(len(scale), MAX_FINITE_CODE[dtype], np.int32)
    scales = torch.from_numpy(scale)
    while (low < high).any():
        middle = (low.astype(np.int64) + high + 1) // 2
        x = _captured(magnitudes_of(middle, dtype), dtype)
        holds = within(round_trip(x, scales, engine=engine, format=format)).numpy()
        low = np.where(holds, middle, low).astype(np.int32)
        high = np.where(holds, high, np.maximum(middle - 1, low)).astype(np.int32)
    return low


def _captured(magnitude: NDArray[Any], dtype: StoredDtype | str) -> Tensor:
    return torch.from_numpy(magnitude).to(getattr(torch, dtype))
