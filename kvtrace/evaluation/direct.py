"""The element-wise replay: every value through every candidate's round trip, all candidates in one read.

The referee of the profile, and the only path for float32 traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from kvtrace.evaluation.reading import read_blocks
from kvtrace.evaluation.sums import ErrorSums, TensorSums, ValueSums, Vectors
from kvtrace.numerics import round_trip
from kvtrace.numerics.captured import MAX_FINITE_CODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.evaluation.reading import Progress
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.merged_layers import MergedLayer
    from kvtrace.trace.reader import Block, Trace

_VALUES_AT_ONCE: Final = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Bounds the temporaries, 60 bytes a value. On a CPU they stay in cache, and below torch's threshold for
splitting work over threads, which costs more than it brings at this size."""


def replay_directly(
    trace: Trace,
    cells: Cells,
    applied: Sequence[AppliedScales],
    device: str,
    *,
    progress: Progress | None = None,
) -> Iterator[TensorSums | Vectors]:
    """Yield each block's vectors while the trace is read, then the sums of every layer, K and V.

    applied: one per candidate; their order is the candidate axis of the sums.
    Sums are float64; which rows share a block does not change counts, and sums only in their last bits.
    """
    cell_of_token = torch.from_numpy(cells.of_token).long().to(device)
    accumulators: dict[tuple[int, str], _Accumulator] = {}
    key: tuple[int, str]
    for block in read_blocks(trace, progress):
        layer = trace.layers[block.layer.index]
        key = layer.index, block.tensor
        if key not in accumulators:
            accumulators[key] = _Accumulator(layer, block.tensor, len(cells), applied, device)
        cell = cell_of_token[torch.from_numpy(block.row).to(device)]
        yield accumulators[key].add(block, cell)
    for key in sorted(accumulators):
        yield accumulators[key].sums()


class _Accumulator:
    """Sums of one layer, K or V, over all blocks and candidates."""

    def __init__(
        self,
        layer: MergedLayer,
        tensor: str,
        num_cells: int,
        applied: Sequence[AppliedScales],
        device: str,
    ) -> None:
        self._layer, self._tensor, self._applied, self._device = layer, tensor, applied, device
        shape = (num_cells, len(layer.kv_heads))
        self._value_counts = torch.zeros(3, *shape, dtype=torch.int64, device=device)
        self._signal = torch.zeros(shape, dtype=torch.float64, device=device)
        self._max_code = torch.full(shape, -1, dtype=torch.int64, device=device)
        self._error_counts = torch.zeros(len(applied), 3, *shape, dtype=torch.int64, device=device)
        self._errors = torch.zeros(len(applied), 2, *shape, dtype=torch.float64, device=device)

    def add(self, block: Block, cell: Tensor) -> Vectors:
        """Add the block, whose rows lie in the cells [num_rows], and return its vectors."""
        x = as_tensor(block, self._device)
        heads = torch.tensor(
            [self._layer.kv_heads.index(head) for head in block.kv_heads], device=self._device
        )
        scales = [self._scale(candidate, block.kv_heads) for candidate in self._applied]
        values_at_once = _VALUES_AT_ONCE[self._device.partition(":")[0]]
        rows_at_once = max(1, values_at_once // x[0].numel()) if len(x) else 1
        codes, nonfinite = [], []
        for start in range(0, len(x), rows_at_once):
            rows = slice(start, start + rows_at_once)
            code, has_nonfinite = self._add_values(x[rows], cell[rows], heads)
            codes.append(code)
            nonfinite.append(has_nonfinite)
            for number, candidate in enumerate(self._applied):
                setup = candidate.setup_of(self._layer.index, self._tensor)
                if setup is not None and (scale := scales[number]) is not None:
                    self._add_errors(number, setup, scale, x[rows], cell[rows], heads)
        empty = torch.empty(0, len(block.kv_heads), dtype=torch.int64)
        return Vectors(
            self._layer.index,
            self._tensor,
            block.kv_heads,
            block.row,
            torch.cat(codes or [empty]).cpu().numpy(),
            torch.cat(nonfinite or [empty.bool()]).cpu().numpy(),
        )

    def _scale(self, candidate: AppliedScales, kv_heads: Sequence[int]) -> Tensor | None:
        values = candidate.of_heads(self._layer.index, self._tensor, kv_heads)
        return None if values is None else torch.tensor(values, device=self._device)[:, None]

    def _add_values(self, x: Tensor, cell: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        code = magnitude_codes(x)
        finite = code <= MAX_FINITE_CODE[self._layer.dtype]
        num_values = finite.sum(-1)
        num_nonfinite = x.shape[-1] - num_values
        squares = x.double().square_().masked_fill_(~finite, 0)
        absmax = code.masked_fill_(~finite, -1).amax(-1).long()
        for number, part in enumerate((torch.ones_like(num_values), num_values, num_nonfinite)):
            self._value_counts[number] = _added(self._value_counts[number], cell, heads, part)
        self._signal = _added(self._signal, cell, heads, squares.sum(-1))
        index = cell[:, None].expand_as(absmax)
        columns = self._max_code[:, heads].scatter_reduce_(0, index, absmax, "amax")
        self._max_code[:, heads] = columns
        return absmax, num_nonfinite > 0

    def _add_errors(
        self, number: int, setup: ServingSetup, scale: Tensor, x: Tensor, cell: Tensor, heads: Tensor
    ) -> None:
        result = round_trip(x, scale, engine=setup.engine, format=setup.fp8_format)
        squares = (x.double() - result.restored).square_().masked_fill_(~torch.isfinite(x), 0)
        for kind, mask in enumerate((result.out_of_range, result.clipped, result.flushed)):
            self._error_counts[number, kind] = _added(
                self._error_counts[number, kind], cell, heads, mask.sum(-1)
            )
        for kind, part in enumerate((squares.sum(-1), (squares * result.clipped).sum(-1))):
            self._errors[number, kind] = _added(self._errors[number, kind], cell, heads, part)

    def sums(self) -> TensorSums:
        vectors, values, nonfinite = self._value_counts.cpu().numpy()
        out_of_range, clipped, flushed = self._error_counts.transpose(0, 1).cpu().numpy()
        error, clip_error = self._errors.transpose(0, 1).cpu().numpy()
        return TensorSums(
            self._layer.index,
            self._tensor,
            self._layer.kv_heads,
            self._layer.dtype,
            ValueSums(vectors, values, nonfinite, self._signal.cpu().numpy(), self._max_code.cpu().numpy()),
            ErrorSums(out_of_range, clipped, flushed, error, clip_error),
        )


def as_tensor(block: Block, device: str) -> Tensor:
    """Return the block's values in the captured dtype, [num_rows, kv_head, head_dim], on the device."""
    return torch.from_numpy(block.values).to(device).view(getattr(torch, block.layer.dtype))


def magnitude_codes(x: Tensor) -> Tensor:
    """Return the bits of each value without its sign, int32. x: bfloat16, float16 or float32."""
    if x.dtype == torch.float32:
        return x.view(torch.int32) & 0x7FFFFFFF
    return (x.view(torch.int16) & 0x7FFF).int()


def _added(total: Tensor, cell: Tensor, heads: Tensor, part: Tensor) -> Tensor:
    """Return total [cell, kv_head] plus part [row, head of the block], each row into its cell."""
    columns = torch.zeros(len(total), len(heads), dtype=total.dtype, device=total.device)
    return total.index_add(1, heads, columns.index_add_(0, cell, part))
