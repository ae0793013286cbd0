"""What scales do to counted magnitudes, as an engine writes them: compiled, or on tensors where it is not."""
# ruff: noqa: A002 -- `format` is the name users type

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.numerics.compiled import cache_write
from kvtrace.numerics.counted import counted_errors
from kvtrace.numerics.engines import find_engine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvtrace.numerics.counted import CountedErrors
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
    if find_engine(engine).kernel is None:
        from kvtrace.numerics import uncompiled  # torch takes over a second to import

        return uncompiled.counted_errors(
            magnitude, place, count, start, scale, engine=engine, format=format, dtype=dtype
        )
    return counted_errors(magnitude, place, count, start, scale, cache_write(engine, format, dtype))
