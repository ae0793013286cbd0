"""The axes of the page's arrays, and from a table's columns to places on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TENSORS: Final = ("k", "v")
PHASES: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Axes:
    """What the places along each axis of the arrays of `ChartData` stand for."""

    candidates: tuple[str, ...]
    """The valid ones that quantize, in the order asked for."""
    heads: tuple[tuple[int, int], ...]
    """(layer, kv_head), sorted."""
    workloads: tuple[str, ...]
    strata: tuple[tuple[str, int], ...]
    """(phase, octave): prefill first."""
    octaves: tuple[int, ...]

    def head(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the head's index of each row: the number of heads where layer is NULL, -1 if unknown."""
        layers = pc.fill_null(table["layer"], -1).to_numpy()
        kv_heads = pc.fill_null(table["kv_head"], -1).to_numpy()
        stride = max((kv_head for _, kv_head in self.heads), default=0) + 2
        known = np.array([layer * stride + kv_head for layer, kv_head in self.heads] or [-1])
        asked = layers * stride + kv_heads
        place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        is_known = (known[place] == asked) & (kv_heads < stride)
        return np.where(layers < 0, len(self.heads), np.where(is_known, place, -1)).astype(np.int64)


def index_in(column: pa.ChunkedArray, known: Sequence[Any]) -> NDArray[np.int64]:
    """Return each value's place among the known ones; -1 where it is none of them, or NULL."""
    found = pc.index_in(column, value_set=pa.array(list(known), column.type))
    return np.asarray(pc.fill_null(found, -1).to_numpy(), dtype=np.int64)


def floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of numbers; NaN where NULL."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
