"""What scales do to counted magnitudes, as an engine writes them: compiled, or on tensors where it is not.

On tensors it is slower by an order of magnitude; the squared sums may differ from a compiled form's in their
last bits.
"""
# ruff: noqa: A002 -- `format` is the name users type

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtrace.numerics.compiled import cache_write
from kvtrace.numerics.counted import CountedErrors, counted_errors
from kvtrace.numerics.engines import find_engine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.format import StoredDtype


def error_counts(
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
    """Return what each scale does to the values of each cell: arrays as in `counted.counted_errors`.

    dtype: the captured dtype. Raises InputError: engine or format unknown, or not offered together.
    """
    if find_engine(engine).kernel is not None:
        return counted_errors(magnitude, place, count, start, scale, cache_write(engine, format, dtype))
    from kvtrace.numerics.elementwise import captured_tensor, round_trip  # torch: over a second to import

    num_cells = len(start) - 1
    cell = np.repeat(np.arange(num_cells), np.diff(start))
    x = captured_tensor(magnitude, dtype)
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
