"""Exact magnitude counts with torch, for CUDA; runs on the CPU too, where the tests compare it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE_BITS: Final = 15
_COUNTERS_AT_ONCE: Final = 1 << 26
"""Bounds the memory of the counters, 8 bytes each."""


def count_magnitudes(
    values: NDArray[np.uint16],
    row_of_rank: NDArray[np.int64],
    cell_start: NDArray[np.int64],
    device: str,
) -> tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint16]]:
    """Return what `cpu_kernel.count_magnitudes` returns, computed on the device."""
    num_heads = values.shape[1]
    num_cells = len(cell_start) - 1
    bits = torch.from_numpy(values.view(np.int16)).to(device)
    rows = torch.from_numpy(row_of_rank).to(device)
    cell = np.repeat(np.arange(num_cells), np.diff(cell_start))
    cells = torch.from_numpy(cell).to(device)
    codes = bits[rows].to(torch.int32) & ((1 << _CODE_BITS) - 1)
    heads_at_once = max(1, _COUNTERS_AT_ONCE // (num_cells << _CODE_BITS))
    parts = [
        _count_heads(codes[:, head : head + heads_at_once], cells, num_cells)
        for head in range(0, num_heads, heads_at_once)
    ]
    lengths = torch.cat([length for _, _, length in parts])
    start = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return (
        torch.cat([code for code, _, _ in parts]).cpu().numpy().astype(np.uint16),
        torch.cat([count for _, count, _ in parts]).cpu().numpy().astype(np.uint32),
        start.cpu().numpy(),
        codes.amax(-1).cpu().numpy().astype(np.uint16),
    )


def _count_heads(
    codes: torch.Tensor, cell: torch.Tensor, num_cells: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return code and count of the non-zero counters, and how many each (head, cell) has of them.

    codes: [row, head, head_dim]. cell: [row].
    """
    num_heads = codes.shape[1]
    head = torch.arange(num_heads, device=codes.device)
    segment = (head[None, :] * num_cells + cell[:, None])[:, :, None]
    counters = torch.bincount(
        ((segment << _CODE_BITS) | codes).flatten(), minlength=num_heads * num_cells << _CODE_BITS
    )
    found = counters.nonzero().flatten()
    lengths = torch.bincount(found >> _CODE_BITS, minlength=num_heads * num_cells)
    return found & ((1 << _CODE_BITS) - 1), counters[found], lengths
