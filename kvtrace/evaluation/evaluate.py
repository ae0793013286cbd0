"""Every candidate over a trace's exact counts: compiled on the CPU, dense matrix products on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.evaluation.sums import ErrorSums, TensorSums, ValueSums
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.compiled import cache_write
from kvtrace.numerics.counted import counted_errors

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
    finite = tensor.code <= MAX_FINITE_CODE[record.dtype]
    if device == "cpu":
        errors = _on_cpu(tensor, finite, batches, num_candidates)
    else:
        from kvtrace.evaluation import gpu_kernel  # torch takes over a second to import

        errors = gpu_kernel.error_sums(tensor, batches, num_candidates, device)
    values = _value_sums(tensor, finite, cells)
    return TensorSums(record.layer, record.tensor, record.kv_heads, record.dtype, values, errors)


def _on_cpu(
    tensor: TensorProfile, finite: NDArray[np.bool_], batches: Sequence[ScaleBatch], num_candidates: int
) -> ErrorSums:
    record, num_cells = tensor.record, tensor.num_cells
    shape = (num_candidates, num_cells, len(record.kv_heads))
    counts: list[Any] = [np.zeros(shape, np.int64) for _ in range(3)]
    squares: list[Any] = [np.zeros(shape) for _ in range(2)]
    num_finite = np.concatenate([[0], np.cumsum(finite)])[tensor.start]
    place_of_code = np.zeros(1 << 15, np.int32)
    for head in range(len(record.kv_heads)):
        entries = slice(tensor.start[head * num_cells], tensor.start[(head + 1) * num_cells])
        code = tensor.code[entries][finite[entries]]
        count = tensor.count[entries][finite[entries]].astype(np.float64)
        start = num_finite[head * num_cells : (head + 1) * num_cells + 1]
        occurs = np.flatnonzero(np.bincount(code, minlength=1))
        place_of_code[occurs] = np.arange(len(occurs))
        magnitude, place = magnitudes_of(occurs, record.dtype), place_of_code[code]
        for batch in batches:
            write = cache_write(batch.setup.engine, batch.setup.fp8_format, record.dtype)
            scale = np.ascontiguousarray(batch.scale[:, head])
            found = counted_errors(magnitude, place, count, start - start[0], scale, write)
            for target, own in zip(counts, found.counts, strict=True):
                target[batch.numbers, :, head] = own
            for target, own in zip(squares, found.squares, strict=True):
                target[batch.numbers, :, head] = own
    return ErrorSums(*counts, *squares)


def _value_sums(tensor: TensorProfile, finite: NDArray[np.bool_], cells: Cells) -> ValueSums:
    record = tensor.record
    shape = (len(record.kv_heads), tensor.num_cells)
    num_segments = shape[0] * shape[1]
    segment = np.repeat(np.arange(num_segments), np.diff(tensor.start))
    count = tensor.count.astype(np.float64)  # exact up to 2^53

    def total(weights: Any, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        sums: NDArray[Any] = np.bincount(segment[chosen], weights[chosen], num_segments)
        return sums.reshape(shape).T

    magnitude = magnitudes_of(np.where(finite, tensor.code, 0), record.dtype).astype(np.float64)
    largest = np.full(num_segments, -1, np.int64)
    largest[segment[finite]] = tensor.code[finite]  # ascending within a segment: the last one stays
    return ValueSums(
        _num_vectors(tensor, cells),
        total(count, finite).astype(np.int64),
        total(count, ~finite).astype(np.int64),
        total(count * magnitude**2, finite),
        largest.reshape(shape).T,
    )


def _num_vectors(tensor: TensorProfile, cells: Cells) -> NDArray[np.int64]:
    per_head = [np.bincount(cells.of_token[p], minlength=len(cells)) for p in tensor.is_present.T]
    return np.stack(per_head, axis=1)
