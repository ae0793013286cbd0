"""Every candidate over a trace's exact counts: compiled on the CPU, dense matrix products on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtrace.evaluation.sums import ErrorSums, TensorSums, ValueSums
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.counted import segment_sums
from kvtrace.numerics.error_counts import error_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.evaluation.scale_batch import ScaleBatch
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.trace.cells import Cells


def evaluate_tensor(
    tensor: TensorProfile,
    cells: Cells,
    batches: Sequence[ScaleBatch],
    num_candidates: int,
    device: str,
) -> TensorSums:
    """Return the sums of one layer, K or V, for every candidate; 0 errors for those in no batch.

    device: cpu, cuda or cuda:N. Counts are equal on all, squared sums but for their last bits.
    """
    record = tensor.record
    if device == "cpu":
        errors = _on_cpu(tensor, batches, num_candidates)
    else:
        from kvtrace.evaluation import gpu_kernel  # torch takes over a second to import

        errors = gpu_kernel.error_sums(tensor, batches, num_candidates, device)
    values = _value_sums(tensor, cells)
    return TensorSums(record.layer, record.tensor, record.kv_heads, record.dtype, values, errors)


def _on_cpu(tensor: TensorProfile, batches: Sequence[ScaleBatch], num_candidates: int) -> ErrorSums:
    record, num_cells = tensor.record, tensor.num_cells
    # Heads first, so that what each has is written row by row.
    counts = np.zeros((3, len(record.kv_heads), num_candidates, num_cells), np.int64)
    squares = np.zeros((2, len(record.kv_heads), num_candidates, num_cells))
    code, count, start = _finite_entries(tensor)
    place_of_code = np.zeros(1 << 15, np.uint32)
    for head in range(len(record.kv_heads)):
        own_start = start[head * num_cells : (head + 1) * num_cells + 1]
        entries = slice(own_start[0], own_start[-1])
        occurs = np.zeros(1 << 15, bool)
        occurs[code[entries]] = True
        occurring = np.flatnonzero(occurs)
        place_of_code[occurring] = np.arange(len(occurring))
        magnitude, place = magnitudes_of(occurring, record.dtype), place_of_code[code[entries]]
        own_count = count[entries].astype(np.float64)
        for batch in batches:
            scale = np.ascontiguousarray(batch.scale[:, head])
            found = error_counts(
                magnitude,
                place,
                own_count,
                own_start - own_start[0],
                scale,
                engine=batch.setup.engine,
                format=batch.setup.fp8_format,
                dtype=record.dtype,
            )
            counts[:, head, batch.numbers] = found.counts
            squares[:, head, batch.numbers] = found.squares
    return ErrorSums(*counts.transpose(0, 2, 3, 1), *squares.transpose(0, 2, 3, 1))


def _finite_entries(
    tensor: TensorProfile,
) -> tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.int64]]:
    """Return code, count and start without the entries of NaN and inf."""
    finite = tensor.code <= MAX_FINITE_CODE[tensor.record.dtype]
    if finite.all():
        return tensor.code, tensor.count, tensor.start
    before = np.concatenate([[0], np.cumsum(finite)])
    return tensor.code[finite], tensor.count[finite], before[tensor.start]


def _value_sums(tensor: TensorProfile, cells: Cells) -> ValueSums:
    record = tensor.record
    magnitude = magnitudes_of(np.arange(MAX_FINITE_CODE[record.dtype] + 1), record.dtype)
    counts, energy = segment_sums(tensor.code, tensor.count.astype(np.float64), tensor.start, magnitude)
    shape = (len(record.kv_heads), tensor.num_cells)
    num_values, num_nonfinite, max_code = (one.reshape(shape).T for one in counts)
    return ValueSums(
        _num_vectors(tensor, cells), num_values, num_nonfinite, energy.reshape(shape).T, max_code
    )


def _num_vectors(tensor: TensorProfile, cells: Cells) -> NDArray[np.int64]:
    per_head = [np.bincount(cells.of_token[p], minlength=len(cells)) for p in tensor.is_present.T]
    return np.stack(per_head, axis=1)
