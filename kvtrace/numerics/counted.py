"""What scales do to counted magnitudes, compiled for the CPU: a scale costs the same however long the trace.

Counts of out-of-range, clipped and flushed values are sums of counters beyond a limit. Squared errors are a
sparse product, counters [cell, magnitude] × error [magnitude, scale], in float64. Nothing is approximated:
the result differs from the element-wise round trip in the last bits of the squared sums at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np

from kvtrace.numerics.compiled import LANES, fill_errors, is_flushed, is_in_range, is_unclipped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.numerics.compiled import CacheWrite

_CACHE_LINE_BYTES: Final = 64
_1, _2, _3, _4, _ROW = (np.uintp(number) for number in (1, 2, 3, 4, LANES))
_DENSE_COUNTERS: Final = 1 << 20
"""Bounds the sums beyond each magnitude, 24 bytes each: cells are taken in blocks of so many."""


@dataclass(frozen=True, slots=True)
class CountedErrors:
    """What each scale does to the values of each cell."""

    counts: NDArray[np.int64]
    """[3, scale, cell], values out of range, clipped, flushed; zeros are not flushed."""
    squares: NDArray[np.float64]
    """[2, scale, cell], Σ (x − x̂)² over all values and over clipped ones."""


def counted_errors(
    magnitude: NDArray[np.float32],
    place: NDArray[np.uint32],
    count: NDArray[np.float64],
    start: NDArray[np.int64],
    scale: NDArray[np.float32],
    write: CacheWrite,
) -> CountedErrors:
    """Return what each scale does to the values of each cell.

    magnitude: [num_magnitudes], finite, ascending. place: [num_entries], index into them, ascending within
    each cell. count: [num_entries], whole numbers. start: [num_cells + 1], where each cell's entries begin.
    scale: [num_scales], > 0. Releases the GIL: call it from several threads.
    """
    assert _are_segments(start, len(place)), "`start` leads out of the entries"
    assert len(count) == len(place), "not one count for each entry"
    assert place.max(initial=0) < max(1, len(magnitude)), "an entry's magnitude is not there"
    num_cells, num_scales = len(start) - 1, len(scale)
    counts = np.zeros((3, num_scales, num_cells), np.int64)
    squares = np.zeros((2, num_scales, num_cells))
    if num_scales:
        errors, total = _aligned((len(magnitude), LANES)), _aligned((1, LANES))
        _sum_errors(magnitude, place, count, start, scale, write, errors, total, squares[0])
    cells_at_once = max(1, _DENSE_COUNTERS // (len(magnitude) + 1))
    for first in range(0, num_cells, cells_at_once):
        last = min(first + cells_at_once, num_cells)
        beyond = _sums_beyond(magnitude, place, count, start, first, last)
        _count_beyond(magnitude, beyond, first, scale, write, counts, squares[1])
    return CountedErrors(counts, squares)


def _are_segments(start: NDArray[np.int64], num_entries: int) -> bool:
    """Return whether segments that begin there take all entries: the kernels index without bounds checks."""
    return bool(start[0] == 0 and start[-1] == num_entries and (start[1:] >= start[:-1]).all())


def _aligned(shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return an array that begins a cache line: elsewhere every 64-byte load of a row touches two."""
    num_bytes = 8 * shape[0] * shape[1]
    memory = np.empty(num_bytes + _CACHE_LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[begin : begin + num_bytes].view(np.float64).reshape(shape)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _sum_errors(
    magnitude: Any,
    place: Any,
    count: Any,
    start: Any,
    scale: Any,
    write: Any,
    errors: Any,
    total: Any,
    sums: Any,
) -> None:
    """Write Σ count · error of each scale and cell. errors, total: room for LANES scales, aligned."""
    num_scales = len(scale)
    lanes = np.empty(LANES, np.float32)
    for batch in range(0, num_scales, LANES):
        for lane in range(LANES):
            lanes[lane] = scale[min(batch + lane, num_scales - 1)]
        fill_errors(magnitude, lanes, write, errors)
        for cell in range(len(start) - 1):
            _add_up(place, count, start[cell], start[cell + 1], errors.reshape(-1), total[0])
            for number in range(batch, min(batch + LANES, num_scales)):
                sums[number, cell] = total[0, number - batch]


@numba.njit(nogil=True, fastmath={"contract"})
def _add_up(place: Any, count: Any, begin: int, end: int, errors: Any, total: Any) -> None:
    """Write Σ count · error of the entries, per lane. Four entries at a time: a quarter of the stores.

    Indices are unsigned: numba makes signed ones count from the end where they are negative.
    """
    total[:] = 0
    j, stop = np.uintp(begin), np.uintp(end)
    whole = np.uintp(begin + (end - begin) // 4 * 4)
    while j < whole:
        n0, n1, n2, n3 = count[j], count[j + _1], count[j + _2], count[j + _3]
        e0, e1, e2, e3 = place[j] * _ROW, place[j + _1] * _ROW, place[j + _2] * _ROW, place[j + _3] * _ROW
        for lane in range(LANES):
            i = np.uintp(lane)
            total[i] += n0 * errors[e0 + i] + n1 * errors[e1 + i] + n2 * errors[e2 + i] + n3 * errors[e3 + i]
        j += _4
    while j < stop:
        n, error = count[j], place[j] * _ROW
        for lane in range(LANES):
            total[np.uintp(lane)] += n * errors[error + np.uintp(lane)]
        j += _1


def segment_sums(
    code: NDArray[np.uint16],
    count: NDArray[np.float64],
    start: NDArray[np.int64],
    magnitude: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return, per segment, [3, segment] values, non-finite values and largest finite code, and Σ n·x².

    code, count: [num_entries], codes ascending within a segment, counts whole numbers up to 2^53. start:
    [num_segments + 1]. magnitude: of every finite code. The largest code is -1 where no value is finite.
    Releases the GIL.
    """
    assert _are_segments(start, len(code)), "`start` leads out of the entries"
    assert len(count) == len(code), "not one count for each entry"
    num_segments = len(start) - 1
    counts, energy = np.zeros((3, num_segments), np.int64), np.zeros(num_segments)
    _sum_segments(code, count, start, magnitude, counts, energy)
    return counts, energy


@numba.njit(nogil=True, cache=True)
def _sum_segments(code: Any, count: Any, start: Any, magnitude: Any, counts: Any, energy: Any) -> None:
    for segment in range(len(start) - 1):
        total = 0.0
        counts[2, segment] = -1
        for entry in range(start[segment], start[segment + 1]):
            n = count[entry]
            if code[entry] < len(magnitude):
                x = np.float64(magnitude[code[entry]])
                counts[0, segment] += n
                counts[2, segment] = code[entry]
                total += n * (x * x)
            else:
                counts[1, segment] += n
        energy[segment] = total


@numba.njit(nogil=True, cache=True)
def _sums_beyond(magnitude: Any, place: Any, count: Any, start: Any, first: int, last: int) -> Any:
    """Return Σ n, Σ n·x and Σ n·x² of the magnitudes from i on, [3, i, cell].

    Added from the largest on, so that the few values beyond a limit keep their precision.
    """
    sums = np.zeros((3, len(magnitude) + 1, last - first))
    for cell in range(first, last):
        for entry in range(start[cell], start[cell + 1]):
            sums[0, place[entry], cell - first] = count[entry]
    for i in range(len(magnitude) - 1, -1, -1):
        x = np.float64(magnitude[i])
        for cell in range(last - first):
            n = sums[0, i, cell]
            sums[0, i, cell] += sums[0, i + 1, cell]
            sums[1, i, cell] = sums[1, i + 1, cell] + n * x
            sums[2, i, cell] = sums[2, i + 1, cell] + n * x * x
    return sums


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _count_beyond(
    magnitude: Any, beyond: Any, first: int, scale: Any, write: Any, counts: Any, clip_errors: Any
) -> None:
    """Write the counts and the clip error of each scale, in the cells from `first` on."""
    num_cells = beyond.shape[2]
    num_zeros = beyond[0, 0] - beyond[0, np.searchsorted(magnitude, np.float32(0), "right")]
    for number in range(len(scale)):
        out_of_range, clipped, kept = _first_places(magnitude, scale[number], write)
        # All clipped values come back as the same one, c: Σ(x − c)² needs their number and moments alone.
        c = np.float64(np.float32(scale[number] * write.max_value))
        for cell in range(num_cells):
            n = beyond[0, clipped, cell]
            counts[0, number, first + cell] = np.int64(beyond[0, out_of_range, cell])
            counts[1, number, first + cell] = np.int64(n)
            flushed = beyond[0, 0, cell] - beyond[0, kept, cell] - num_zeros[cell]
            counts[2, number, first + cell] = np.int64(flushed)
            error = beyond[2, clipped, cell] - 2 * c * beyond[1, clipped, cell] + c * c * n
            clip_errors[number, first + cell] = max(error, 0.0)


@numba.njit(nogil=True, error_model="numpy")
def _first_places(magnitude: Any, scale: Any, write: Any) -> tuple[int, int, int]:
    """Return where the magnitudes out of range, those clipped and those not flushed begin."""
    found = (0, 0, 0)
    for question in range(3):
        low, high = 0, len(magnitude)
        while low < high:
            middle = (low + high) // 2
            if magnitude[middle] == 0:
                within = True
            elif question == 0:
                within = is_in_range(magnitude[middle], scale, write)
            elif question == 1:
                within = is_unclipped(magnitude[middle], scale, write)
            else:
                within = is_flushed(magnitude[middle], scale, write)
            if within:
                low = middle + 1
            else:
                high = middle
        found = (found[1], found[2], low)
    return found
