"""Whether a stored profile can be one of its trace: what all that works on its arrays takes for granted.

Compiled kernels index without bounds checks, and a checksum says that a file is whole, not that its sender
meant well. What passes here leads no kernel out of its arrays. Whether its counts are the right ones is
another question, which takes the tensors, or the seal of who counted them (`own_seal`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE
from kvtrace.profile.validate_outliers import problems_of_channels, problems_of_outliers
from kvtrace.trace.profile_format import HAS_NONFINITE, NO_FINITE_VALUE, tensor_specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.profile.counts import TensorProfile
    from kvtrace.trace.format import StoredDtype
    from kvtrace.trace.merged_layers import MergedLayer
    from kvtrace.trace.profile_format import CellRecord, ProfileRecord, TensorRecord
    from kvtrace.trace.reader import Trace

_NUM_CODES: Final = 1 << 15


def problem_of_record(record: ProfileRecord, trace: Trace) -> str | None:
    """Return why no profile of the trace can have this record; None where one can.

    Without a problem, the record bounds all memory that its arrays may take. Cells that the trace could have
    but that are not today's are none: such a profile is sound, and is not used.
    """
    return next(_problems_of_record(record, trace), None)


def problem_of_arrays(
    tensor: TensorProfile, cell_of_token: NDArray[np.int32] | None = None
) -> tuple[str, str] | None:
    """Return an array that no profile can have, by name, and why; None where all are possible.

    The arrays have the dtypes and lengths that the record says, and the record has no problem.
    cell_of_token: [num_tokens]; with it, each cell must have as many values as its vectors.
    """
    return next(_problems_of_arrays(tensor, cell_of_token), None)


def _problems_of_record(record: ProfileRecord, trace: Trace) -> Iterator[str]:
    """Yield problems; each is looked for in a record that has none of those before."""
    head_dims, num_chunks = _counted_tensors(trace)
    num_tokens = len(trace.tokens)
    if record.num_tokens != num_tokens:
        yield f"it is over {record.num_tokens:,} tokens, the trace has {num_tokens:,}"
    if record.num_chunks != num_chunks:
        yield f"it is over {record.num_chunks:,} tensor chunks, the trace has {num_chunks:,}"
    yield from _problems_of_cells(record.cells, trace)
    found = [(tensor.layer, tensor.tensor) for tensor in record.tensors]
    if len(set(found)) < len(found):
        yield "it has counts of one layer's K or V twice"
    for layer, tensor in sorted(set(found) ^ set(head_dims)):
        lacks, of = ("it", "") if (layer, tensor) in head_dims else ("the trace", ", of which it has counts")
        yield f"{lacks} lacks layer {layer} {tensor}{of}"
    for one in record.tensors:
        merged, head_dim = trace.layers[one.layer], head_dims[one.layer, one.tensor]
        for problem in _problems_of_tensor(one, merged, head_dim, len(record.cells), num_tokens):
            yield f"layer {one.layer} {one.tensor} {problem}"


def _counted_tensors(trace: Trace) -> tuple[dict[tuple[int, str], int], int]:
    """Return the head_dim of every layer's K and V that has chunks, and the number of all chunks."""
    head_dims: dict[tuple[int, str], int] = {}
    num_chunks = 0
    for store in trace.ranks:
        for layer, tensor, spec in store.tensor_specs() if store.num_chunks else ():
            head_dims.setdefault((layer.index, tensor), spec.row_shape[1])
            num_chunks += store.num_chunks
    return head_dims, num_chunks


def _problems_of_cells(cells: tuple[CellRecord, ...], trace: Trace) -> Iterator[str]:
    num_tokens = len(trace.tokens)
    if not min(1, num_tokens) <= len(cells) <= num_tokens:
        yield f"it has {len(cells):,} cells, expected each of them to hold some of {num_tokens:,} tokens"
    if len(set(cells)) < len(cells):
        yield "it has one cell twice"
    workloads = {request.workload for request in trace.requests.values()}
    for number, cell in enumerate(cells):
        if cell.workload not in workloads:
            yield f"cell {number} is of a workload that no request of the trace has"
        if cell.sampling_id not in trace.sampling:
            yield f"cell {number} is of sampling_id {cell.sampling_id}, which the trace has not"
        if min(cell.position_octave or 0, cell.request_group or 0) < 0:
            yield f"cell {number} has a negative position octave or request group"


def _problems_of_tensor(
    record: TensorRecord, layer: MergedLayer, head_dim: int, num_cells: int, num_tokens: int
) -> Iterator[str]:
    if record.kv_heads != layer.kv_heads:
        yield f"has other KV heads than the trace, which has {', '.join(map(str, layer.kv_heads))}"
    if record.head_dim != head_dim:
        yield f"has a head_dim of {record.head_dim:,}, the trace has {head_dim:,}"
    if record.dtype != layer.dtype:
        yield f"is of {record.dtype}, the trace has {layer.dtype}"
    most = len(layer.kv_heads) * min(num_cells * _NUM_CODES, num_tokens * head_dim)
    if not 0 <= record.num_entries <= most:
        yield f"has {record.num_entries:,} entries, expected 0 to {most:,}"
    yield from problems_of_channels(record, num_cells, num_tokens)
    num_files = len(tensor_specs(record))
    for checksums in (record.crcs, record.sha256):
        if checksums is not None and len(checksums) != num_files:
            yield f"has {len(checksums)} checksums, expected {num_files}"


def _problems_of_arrays(
    tensor: TensorProfile, cell_of_token: NDArray[np.int32] | None
) -> Iterator[tuple[str, str]]:
    """Yield problems; each is looked for in arrays that have none of those before."""
    start, num_entries = tensor.start, len(tensor.code)
    if start[0] != 0:
        yield "start", f"it begins at {start[0]:,}, expected 0"
    # Compared, not subtracted: a difference may wrap.
    if (at := _first(start[1:] < start[:-1])) is not None:
        yield "start", f"it falls from {start[at]:,} to {start[at + 1]:,}, expected never"
    if start[-1] != num_entries:
        yield "start", f"it ends at {start[-1]:,}, expected the number of entries, {num_entries:,}"
    if (at := _first(tensor.code >= _NUM_CODES)) is not None:
        yield "code", f"entry {at:,} has code {tensor.code[at]:,}, expected at most {_NUM_CODES - 1:,}"
    if (at := _first(_does_not_ascend(tensor.code, start))) is not None:
        pair = f"{tensor.code[at + 1]:,} after {tensor.code[at]:,}"
        yield "code", f"entry {at + 1:,} has code {pair}, expected ascending ones within a KV head's cell"
    if (at := _first(tensor.count == 0)) is not None:
        yield "count", f"entry {at:,} counts 0 values, expected at least 1"
    if (at := _first(_is_no_maximum(tensor.absmax, tensor.record.dtype).reshape(-1))) is not None:
        token, head = divmod(at, tensor.absmax.shape[1])
        found = f"0x{tensor.absmax[token, head]:04x}"
        yield "absmax", f"token {token:,} has {found}, expected a finite code or a mark of none"
    yield from problems_of_outliers(tensor)
    if cell_of_token is not None:
        yield from _problems_of_sums(tensor, cell_of_token)


def _problems_of_sums(tensor: TensorProfile, cell_of_token: NDArray[np.int32]) -> Iterator[tuple[str, str]]:
    num_values = np.diff(np.append(0, np.cumsum(tensor.count, dtype=np.int64))[tensor.start])
    present, num_cells = tensor.is_present, tensor.num_cells
    columns = present.T[:1] if present.all() else present.T  # one for all heads, or each its own
    num_vectors = [np.bincount(cell_of_token[column], minlength=num_cells) for column in columns]
    expected = np.resize(np.stack(num_vectors), (len(tensor.record.kv_heads), num_cells)).reshape(-1)
    expected = expected * tensor.record.head_dim
    if (at := _first(num_values != expected)) is not None:
        place = f"KV head {tensor.record.kv_heads[at // num_cells]}, cell {at % num_cells}"
        vectors = f"{expected[at]:,}, head_dim for each of its vectors"
        yield "count", f"{place} counts {num_values[at]:,} values, expected {vectors}"
    finite = MAX_FINITE_CODE[tensor.record.dtype]
    largest = tensor.absmax_code.max(axis=0, initial=-1)
    for axis, head in enumerate(tensor.record.kv_heads):
        codes = tensor.code[tensor.start[axis * num_cells] : tensor.start[(axis + 1) * num_cells]]
        counted = int(codes.max(where=codes <= finite, initial=0)) if (codes <= finite).any() else -1
        if counted != largest[axis]:
            found = f"{largest[axis]:,} as the largest finite code of KV head {head}"
            yield "absmax", f"it has {found}, its counts have {counted:,}"


def _does_not_ascend(code: NDArray[np.uint16], start: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, for every entry but the last, whether the next one's code is no larger though it should be."""
    falls: NDArray[np.bool_] = code[1:] <= code[:-1]
    begins = start[(start > 0) & (start < len(code))]
    falls[begins - 1] = False
    return falls


def _is_no_maximum(absmax: NDArray[np.uint16], dtype: StoredDtype) -> NDArray[np.bool_]:
    """Return where there is neither a finite code, with or without the flag, nor one of the two marks."""
    beyond: NDArray[np.bool_] = (absmax & (HAS_NONFINITE - 1)) > MAX_FINITE_CODE[dtype]
    beyond &= absmax < (HAS_NONFINITE | NO_FINITE_VALUE)  # ABSENT is one more
    return beyond


def _first(wrong: NDArray[np.bool_]) -> int | None:
    """Return the first place that is wrong; None where none is."""
    at = int(wrong.argmax()) if len(wrong) else 0
    return at if len(wrong) and wrong[at] else None
