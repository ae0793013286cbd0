"""Profile a trace: one streaming pass over its tensors, several layers at a time.

Each worker reads, unpacks and counts one layer's K or V; blosc, file reads and the kernel release the GIL, so
reading and counting overlap. A layer that exceeds a worker's share of the memory is counted in parts.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE
from kvtrace.profile.counts import OutlierCounts, PartialCounts, TensorProfile, add_counts
from kvtrace.profile.outlier_channels import outlier_channels, sampled_refs, sampled_rows
from kvtrace.trace.ownership import HeadOwners
from kvtrace.trace.profile_format import ABSENT, HAS_NONFINITE, NO_FINITE_VALUE, TensorRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import BlockRef, Trace

    Progress = Callable[[int, int], None]

DEFAULT_MEMORY_BYTES: Final = 256 << 20
"""For unpacked tensors, over all workers."""
_scratch: Final = threading.local()


@dataclass(frozen=True, slots=True)
class RowsByCell:
    """The rows of some chunks that hold a token of a cell, sorted by cell."""

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    """Of each of `row`."""
    cell_start: NDArray[np.int64]
    """[num_cells + 1], where each cell begins in `row`."""


class RowOrder:
    """Sorts the rows of chunks by cell: once for all layers, as these have the same rows."""

    def __init__(self, cell_of_token: NDArray[np.integer[Any]], num_cells: int) -> None:
        self.num_cells = num_cells
        self._cell_of_token = cell_of_token
        self._found: dict[tuple[tuple[int, int], ...], RowsByCell] = {}

    def of(self, group: Sequence[BlockRef]) -> RowsByCell:
        """Return the rows of some chunks of one rank, end to end. Call it from any thread."""
        # A chunk that a repair left out has no rows in one layer, and so tokens of its own.
        key = tuple((id(ref.token_of_row), ref.chunk) for ref in group)
        if key not in self._found:
            self._found[key] = self._sorted(group)
        return self._found[key]

    def _sorted(self, group: Sequence[BlockRef]) -> RowsByCell:
        token = np.concatenate([ref.token_of_row[ref.store.rows_of_chunk(ref.chunk)] for ref in group])
        cell = np.where(token >= 0, self._cell_of_token[token], -1)
        cell = np.where(cell >= 0, cell, self.num_cells)
        # numpy sorts 16 bits by radix.
        order = np.argsort(cell.astype(np.int16 if self.num_cells < 1 << 15 else np.int32), kind="stable")
        cell_start = np.searchsorted(cell[order], np.arange(self.num_cells + 1))
        row = order[: cell_start[-1]]
        return RowsByCell(row, token[row], cell_start)


def profile_tensors(
    trace: Trace,
    cells: Cells,
    device: str,
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> Iterator[TensorProfile]:
    """Yield the profile of every layer, K and V, over a partition of all tokens, as they get ready.

    device: cpu, cuda or cuda:N; numpy: without compiled code. Otherwise as `count_tensors`. Outlier channels
    are counted apart where cells hold requests of every group: intervals are not made of them.
    """
    yield from count_tensors(
        trace,
        cells.of_token,
        len(cells),
        device,
        outliers_apart=cells.request_group is None,
        memory_bytes=memory_bytes,
        progress=progress,
    )


def count_tensors(
    trace: Trace,
    cell_of_token: NDArray[np.integer[Any]],
    num_cells: int,
    device: str,
    *,
    outliers_apart: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> Iterator[TensorProfile]:
    """Yield the counts of every layer, K and V, as they get ready. bf16 and fp16 layers only.

    cell_of_token: [num_tokens], below `num_cells`; tokens of a negative one are left out, and absent in the
    maxima too.
    Raises IntegrityError: a chunk is missing, cut or damaged.
    """
    refs_of_tensor: dict[tuple[int, str], list[BlockRef]] = defaultdict(list)
    for ref in trace.block_refs():
        refs_of_tensor[ref.layer.index, ref.tensor].append(ref)
    workers = min(len(refs_of_tensor), (os.cpu_count() or 1) + 1)
    rows, share, done = RowOrder(cell_of_token, num_cells), memory_bytes // workers, 0
    owners = HeadOwners(trace)
    with ThreadPoolExecutor(workers, thread_name_prefix="kvtrace-profile") as pool:
        pending = [
            pool.submit(
                _profile_tensor, trace, rows, owners, refs, device, share, outliers_apart=outliers_apart
            )
            for refs in refs_of_tensor.values()
        ]
        try:
            for future in as_completed(pending):
                pending.remove(future)
                yield future.result()
                done += 1
                if progress:
                    progress(done, len(refs_of_tensor))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _profile_tensor(
    trace: Trace,
    rows: RowOrder,
    owners: HeadOwners,
    refs: Sequence[BlockRef],
    device: str,
    memory_bytes: int,
    *,
    outliers_apart: bool,
) -> TensorProfile:
    layer = trace.layers[refs[0].layer.index]
    absmax = np.full((len(trace.tokens), len(layer.kv_heads)), ABSENT, np.uint16)
    parts, outlier_parts = [], []
    channels: dict[int, tuple[int, ...]] = {}  # by place along the kv_head axis
    for group in _groups(refs, memory_bytes):
        kv_heads = group[0].layer.kv_heads
        axes = owners.owned_axes(group[0].store, layer.index, kv_heads)
        if not axes:
            continue
        places = [layer.kv_heads.index(kv_heads[axis]) for axis in axes]
        by_cell = rows.of(group)
        if outliers_apart and places[0] not in channels:
            values, looked_at = _load_and_look(group, [ref for ref in refs if ref.store is group[0].store])
            channels.update(zip(places, outlier_channels(looked_at[:, axes], layer.dtype), strict=True))
        else:
            values = _load(group)
        if len(axes) < values.shape[1]:
            values = np.ascontiguousarray(values[:, axes])
        part, maxima = _count(values, by_cell, tuple(places), device)
        parts.append(part)
        for axis, place in enumerate(places):
            if channels.get(place):
                own = values[:, axis].take(channels[place], axis=1)[:, None]
                outlier_parts.append(_count(own, by_cell, (place,), device)[0])
        maxima = _flag_nonfinite(maxima, values, by_cell.row, MAX_FINITE_CODE[layer.dtype])
        for axis, place in enumerate(places):
            absmax[by_cell.token, place] = maxima[:, axis]
    code, count, start = add_counts(parts, len(layer.kv_heads), rows.num_cells)
    outliers = None
    if outlier_parts:
        outliers = OutlierCounts(*add_counts(outlier_parts, len(layer.kv_heads), rows.num_cells))
    record = TensorRecord(
        layer=layer.index,
        tensor=refs[0].tensor,
        kv_heads=layer.kv_heads,
        head_dim=refs[0].spec.row_shape[1],
        dtype=layer.dtype,
        num_entries=len(code),
        outlier_channels=tuple(channels.get(place, ()) for place in range(len(layer.kv_heads)))
        if outliers_apart
        else None,
        num_outlier_entries=len(outliers.code) if outliers else 0,
    )
    return TensorProfile(record, code, count, start, absmax, outliers)


def _groups(refs: Sequence[BlockRef], memory_bytes: int) -> Iterator[list[BlockRef]]:
    """Cut one tensor's chunks into runs of one rank that fit the memory, at least a chunk each."""
    group: list[BlockRef] = []
    for ref in refs:
        chunk_bytes = 2 * ref.store.rank.rows_per_chunk * int(np.prod(ref.spec.row_shape))
        full = (len(group) + 1) * chunk_bytes > memory_bytes
        if group and (full or ref.store is not group[0].store):
            yield group
            group = []
        group.append(ref)
    if group:
        yield group


def _load(group: Sequence[BlockRef]) -> NDArray[np.uint16]:
    """Return the chunks end to end, [row, kv_head, head_dim]."""
    store, spec = group[0].store, group[0].spec
    size = store.rank.rows_per_chunk
    values = _scratch_array((len(group) * size, *spec.row_shape))
    for number, ref in enumerate(group):
        store.read_chunk(spec, ref.chunk, values[number * size : (number + 1) * size])
    return values


def _load_and_look(
    group: Sequence[BlockRef], of_rank: Sequence[BlockRef]
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return the same of a rank's first chunks, and rows of all its chunks to find outlier channels in."""
    sampled = sampled_refs(of_rank)
    if len(group) == len(of_rank):
        values = _load(group)
        return values, values[sampled_rows(group, sampled)]
    looked_at = _load(sampled)[sampled_rows(sampled, sampled)]
    return _load(group), looked_at


def _scratch_array(shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return this thread's array; the next call overwrites it. Fresh pages would cost more than counting."""
    size = int(np.prod(shape))
    if getattr(_scratch, "values", None) is None or len(_scratch.values) < size:
        _scratch.values = np.empty(size, np.uint16)
    array: NDArray[np.uint16] = _scratch.values[:size].reshape(shape)
    return array


def _count(
    values: NDArray[np.uint16], rows: RowsByCell, places: tuple[int, ...], device: str
) -> tuple[PartialCounts, NDArray[np.uint16]]:
    found: tuple[Any, ...]
    # Each kernel is imported where it is used: a replay over a ready profile saves the time of both.
    if device == "numpy":
        from kvtrace.profile import numpy_kernel

        found = numpy_kernel.count_magnitudes(values, rows.row, rows.cell_start)
    elif device != "cpu":
        from kvtrace.profile import gpu_kernel

        found = gpu_kernel.count_magnitudes(values, rows.row, rows.cell_start, device)
    else:
        from kvtrace.profile import cpu_kernel

        found = cpu_kernel.count_magnitudes(values, rows.row, rows.cell_start)
    code, count, start, absmax = found
    return PartialCounts(places, code, count, start), absmax


def _flag_nonfinite(
    absmax: NDArray[np.uint16], values: NDArray[np.uint16], row: NDArray[np.int64], max_finite: int
) -> NDArray[np.uint16]:
    """Replace the maxima of vectors that hold NaN or inf, which are few. absmax: [rank, kv_head]."""
    rank, head = np.nonzero(absmax > max_finite)
    if len(rank):
        codes = values[row[rank], head] & 0x7FFF
        finite = codes <= max_finite
        largest = np.where(finite, codes, 0).max(-1)
        absmax[rank, head] = np.where(finite.any(-1), largest, NO_FINITE_VALUE) | HAS_NONFINITE
    return absmax
