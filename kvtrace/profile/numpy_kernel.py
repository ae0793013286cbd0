"""Exact magnitude counts with numpy alone: slower than the compiled kernel, and independent of it.

`kvtrace inspect --verify` recounts with it, which the bare install can do too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUM_CODES: Final = 1 << 15


def count_magnitudes(
    values: NDArray[np.uint16], row_of_rank: NDArray[np.int64], cell_start: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint16]]:
    """Return what `cpu_kernel.count_magnitudes` returns."""
    codes = values[row_of_rank] & np.uint16(_NUM_CODES - 1)
    found_codes, found_counts, lengths = [], [], [0]
    for head in range(values.shape[1]):
        for begin, end in pairwise(cell_start.tolist()):
            counters = np.bincount(codes[begin:end, head].reshape(-1), minlength=1)
            occurs = np.flatnonzero(counters)
            found_codes.append(occurs.astype(np.uint16))
            found_counts.append(counters[occurs].astype(np.uint32))
            lengths.append(len(occurs))
    start = np.cumsum(lengths)
    empty = np.empty(0, np.uint16)
    code = np.concatenate(found_codes or [empty])
    count = np.concatenate(found_counts or [empty.astype(np.uint32)])
    return code, count, start, codes.max(axis=-1, initial=0)
