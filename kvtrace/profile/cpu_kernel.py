"""Exact magnitude counts on the CPU, compiled. Releases the GIL: call it from several threads.

One counter per magnitude code, reused from cell to cell: the codes that occur, some 2,000, stay in the
first-level cache. Rows come sorted by cell, so each (head, cell) is counted once and then packed. That order
is not the one in memory, and no processor foresees it: each vector is fetched some rows before its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np

from kvtrace.profile.prefetch import prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_CODES: Final = 1 << 15
_CODE_BLOCK: Final = 64
_ROWS_AHEAD: Final = 12
"""Far enough for a fetch from memory, near enough to stay in the first-level cache until used."""
_CACHE_LINE: Final = 32
"""Values in it."""


def count_magnitudes(
    values: NDArray[np.uint16], row_of_rank: NDArray[np.int64], cell_start: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint16]]:
    """Return (code, count, start, absmax) of some rows of one layer, K or V.

    values: [row, kv_head, head_dim], bf16 or fp16 bits. row_of_rank: the rows, sorted by cell.
    cell_start: [num_cells + 1], where each cell begins in `row_of_rank`.
    code, count: the non-zero counters, ascending within each (kv_head, cell); non-finite codes included.
    start: [num_heads · num_cells + 1], where each (kv_head, cell) begins in them.
    absmax: [rank, kv_head], the largest code of each vector, inf and NaN included; ordered as `row_of_rank`.
    """
    num_rows, num_heads, head_dim = values.shape
    num_cells = len(cell_start) - 1
    rows_in_cell = np.diff(cell_start)
    # The kernel indexes without bounds checks.
    assert rows_in_cell.min(initial=0) >= 0 == cell_start[0], "cells that do not follow each other"
    assert cell_start[-1] <= len(row_of_rank), "a cell of more rows than there are"
    assert not len(row_of_rank) or 0 <= row_of_rank.min() <= row_of_rank.max() < num_rows, "no such row"
    capacity = int(np.minimum(rows_in_cell * head_dim, NUM_CODES).sum()) * num_heads
    # One more than can be used: the kernel writes before it knows whether to keep.
    code, count = np.empty(capacity + 1, np.uint16), np.empty(capacity + 1, np.uint32)
    start = np.empty(num_heads * num_cells + 1, np.int64)
    absmax = np.empty((len(row_of_rank), num_heads), np.uint16)
    counters = np.zeros(NUM_CODES, np.uint32)
    used = _count(values, row_of_rank, cell_start, counters, code, count, start, absmax)
    return code[:used].copy(), count[:used].copy(), start, absmax


@numba.njit(nogil=True, cache=True)
def _count(
    values: Any,
    row_of_rank: Any,
    cell_start: Any,
    counters: Any,
    code: Any,
    count: Any,
    start: Any,
    absmax: Any,
) -> int:
    _, num_heads, head_dim = values.shape
    num_cells = len(cell_start) - 1
    last = len(row_of_rank) - 1
    used = 0
    for head in range(num_heads):
        for cell in range(num_cells):
            start[head * num_cells + cell] = used
            largest = np.uint16(0)
            for rank in range(cell_start[cell], cell_start[cell + 1]):
                ahead = row_of_rank[min(rank + _ROWS_AHEAD, last)]
                for i in range(0, head_dim, _CACHE_LINE):
                    prefetch(values, ahead, head, i)
                vector = values[row_of_rank[rank], head]
                for i in range(head_dim):
                    counters[vector[i] & np.uint16(0x7FFF)] += np.uint32(1)
                # After the counting, which it overlaps with; before it, it costs a tenth more.
                top = np.uint16(0)
                for i in range(head_dim):
                    top = max(top, vector[i] & np.uint16(0x7FFF))
                absmax[rank, head] = top
                largest = max(largest, top)
            if cell_start[cell] < cell_start[cell + 1]:
                num_values = (cell_start[cell + 1] - cell_start[cell]) * head_dim
                used = _pack(counters, num_values, int(largest), code, count, used)
    start[num_heads * num_cells] = used
    return used


@numba.njit(nogil=True, cache=True)
def _pack(counters: Any, num_values: int, largest: int, code: Any, count: Any, used: int) -> Any:
    """Append the non-zero counters, ascending, and clear them.

    Most values lie a few octaves below the largest; zero is the usual exception. So zero is taken apart, and
    counters are looked at downwards only until every value is accounted for.
    """
    # Unsigned, since numba makes signed indices count from the end where they are negative.
    place = np.uintp(used)
    num_zeros = counters[0]
    code[place] = 0
    count[place] = num_zeros
    place += np.uintp(num_zeros != 0)
    counters[0] = 0
    left = num_values - num_zeros
    lowest = largest + 1
    while left > 0:
        upper, lowest = lowest, max(lowest - _CODE_BLOCK, 0)
        for value in counters[lowest:upper]:
            left -= value
    for i in range(np.uintp(lowest), np.uintp(largest + 1)):
        # Written always, kept where not zero: a branch would be mispredicted every other time.
        code[place] = np.uint16(i)
        count[place] = counters[i]
        place += np.uintp(counters[i] != 0)
    counters[lowest : largest + 1] = 0
    return np.intp(place)
