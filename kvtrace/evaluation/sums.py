"""What a replay computes of one layer, K or V: additive sums, and the vectors' largest magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from kvtrace.trace.cells import Cells
    from kvtrace.trace.format import StoredDtype


@dataclass(frozen=True, slots=True)
class ValueSums:
    """What is true whatever the scale. All arrays are [cell, kv_head]."""

    num_vectors: NDArray[np.int64]
    num_values: NDArray[np.int64]
    """Finite values."""
    num_nonfinite: NDArray[np.int64]
    sum_sq_signal: NDArray[np.float64]
    max_code: NDArray[np.int64]
    """Largest finite magnitude code; -1 where there is none."""


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """What each candidate does to the values. All arrays are [candidate, cell, kv_head]."""

    num_out_of_range: NDArray[np.int64]
    num_clipped: NDArray[np.int64]
    num_flushed: NDArray[np.int64]
    sum_sq_error: NDArray[np.float64]
    sum_sq_clip_error: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TensorSums:
    """One layer, K or V."""

    layer: int
    tensor: str
    kv_heads: tuple[int, ...]
    """Global ids along the last axis of every array."""
    dtype: StoredDtype
    values: ValueSums
    errors: ErrorSums


@dataclass(frozen=True, slots=True)
class Vectors:
    """The largest magnitude of some vectors of one layer, K or V."""

    layer: int
    tensor: str
    kv_heads: tuple[int, ...]
    row: NDArray[np.int64]
    """[num_rows], index into the trace's tokens."""
    absmax_code: NDArray[Any]
    """[num_rows, kv_head] int, code of the largest finite magnitude; -1 where no value is finite."""
    has_nonfinite: NDArray[np.bool_]
    """[num_rows, kv_head]."""


@dataclass(frozen=True, slots=True)
class CellSums:
    """Sums of one layer, K or V, and what their cell and candidate axes are."""

    cells: Cells
    """Of workload, phase and octave, or of request groups."""
    candidates: tuple[str, ...]
    sums: TensorSums
    without_range: frozenset[str] = frozenset()
    """Candidates whose values cannot be out of range: their counts of that are absent."""


def sums_alone(values: Iterable[object]) -> Iterator[TensorSums]:
    """Yield the sums among what a replay yields."""
    for value in values:
        if isinstance(value, TensorSums):
            yield value
