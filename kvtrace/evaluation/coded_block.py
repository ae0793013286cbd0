"""One block of rows through several codings: compiled on the CPU, in torch on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.formats.coding import RowCoding
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Block

_VALUES_AT_ONCE: Final = 1 << 15
"""On a CPU, so that what is read, its coded form and the sums stay in cache."""
_VALUES_AT_ONCE_ON_GPU: Final = 1 << 24


@dataclass(slots=True)
class BlockWork:
    """One coding of a block, and what it loses there."""

    coding: RowCoding
    scales: Sequence[float] | None
    """One a head of the block; None: the coding takes none."""
    numbers: list[int] = field(default_factory=list)
    """Of the candidates that it is for."""
    counts: NDArray[np.int64] = field(init=False)
    """[cell, head of the block, 3]: out of range, clipped, flushed."""
    squares: NDArray[np.float64] = field(init=False)
    """[cell, head of the block, 2]: Σ (x − x̂)², and that of clipped values."""


def block_sums(block: Block, cells: Cells, works: Sequence[BlockWork], device: str) -> None:
    """Work out counts and squares of every work. NaN and inf count nowhere, and are 0 to their vector."""
    cell = cells.of_token[block.row].astype(np.int64)
    for one in works:
        shape = (len(cells), len(block.kv_heads))
        one.counts, one.squares = np.zeros((*shape, 3), np.int64), np.zeros((*shape, 2))
    if device == "cpu":
        _on_cpu(block, cell, works)
    else:
        _in_torch(block, cell, works, device)


def _on_cpu(block: Block, cell: NDArray[np.int64], works: Sequence[BlockWork]) -> None:
    from kvtrace.formats.compiled.totals import add_errors

    head_dim, num_heads = block.values.shape[2], len(block.kv_heads)
    kernels = [one.coding.kernel(head_dim, block.layer.dtype) for one in works]
    heads = np.arange(num_heads)
    for start, values in _parts(block, _VALUES_AT_ONCE):
        x = finite_float32(values, block.layer.dtype).reshape(-1, head_dim)
        rows = cell[start : start + len(values)]
        place = (rows[:, None] * num_heads + heads).reshape(-1)
        restored = np.empty_like(x)
        for one, kernel in zip(works, kernels, strict=True):
            scale = np.tile(np.array(one.scales or [1.0] * num_heads, np.float32), len(values))
            kernel.fill(x, scale, restored)
            add_errors(
                x,
                restored,
                _limits(one.coding, scale),
                place,
                one.counts.reshape(-1, 3),
                one.squares.reshape(-1, 2),
            )


def _in_torch(block: Block, cell: NDArray[np.int64], works: Sequence[BlockWork], device: str) -> None:
    import torch

    num_heads = len(block.kv_heads)
    for start, values in _parts(block, _VALUES_AT_ONCE_ON_GPU):
        x = torch.from_numpy(values).to(device).view(getattr(torch, block.layer.dtype))
        x = torch.where(torch.isfinite(x), x, 0)
        rows = torch.from_numpy(cell[start : start + len(values)]).to(device)
        for one in works:
            scale = torch.tensor(one.scales or [1.0] * num_heads, device=device)[:, None]
            restored = one.coding.round_trip(x, scale)
            lost = (x.double() - restored).square_()
            in_range, unclipped = one.coding.limits or (np.inf, np.inf)
            is_clipped = x.float().abs() > unclipped * scale
            counts = torch.stack(
                [
                    (x.float().abs() > in_range * scale).sum(-1),
                    is_clipped.sum(-1),
                    ((restored == 0) & (x != 0)).sum(-1),
                ],
                -1,
            )
            squares = torch.stack([lost.sum(-1), (lost * is_clipped).sum(-1)], -1)
            one.counts += _by_cell(counts, rows, len(one.counts))
            one.squares += _by_cell(squares, rows, len(one.squares))


def finite_float32(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return stored values in float32, exact, 0 for NaN and inf. values: as in `Block.values`."""
    if dtype == "bfloat16":
        x = (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "float16":
        x = values.view(np.float16).astype(np.float32)
    else:
        x = values.astype(np.float32)
    finite = np.isfinite(x)
    return x if finite.all() else np.where(finite, x, np.float32(0))


def _parts(block: Block, values_at_once: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the first row and the values of some rows at a time."""
    if not len(block.values):
        return
    at_once = max(1, values_at_once // max(1, block.values[0].size))
    for start in range(0, len(block.values), at_once):
        yield start, block.values[start : start + at_once]


def _limits(coding: RowCoding, scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [vector, 2]: where its values leave the range, and where they are clipped."""
    if coding.limits is None:
        return np.full((len(scale), 2), np.inf, np.float32)
    factor = scale if coding.uses_scale else np.ones_like(scale)
    return factor[:, None] * np.array(coding.limits, np.float32)


def _by_cell(sums: Any, cell: Any, num_cells: int) -> NDArray[Any]:
    """Return [cell, head, …] of [row, head, …]."""
    total = sums.new_zeros(num_cells, *sums.shape[1:])
    added: NDArray[Any] = total.index_add_(0, cell, sums).cpu().numpy()
    return added
