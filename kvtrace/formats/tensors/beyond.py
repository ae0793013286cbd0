"""What left the range of a format that clips, vector by vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def beyond_limits(
    x: Tensor, restored: Tensor, scale: Tensor | float, in_range: float, unclipped: float
) -> Tensor:
    """Return values out of range, values clipped and their squared error, [..., 3] float64.

    x and restored: [..., head_dim]. scale: broadcastable to x; the limits are magnitudes over it.
    """
    magnitude = x.float().abs()
    scale = torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    return sums_of(x.double(), restored, magnitude > in_range * scale, magnitude > unclipped * scale)


def sums_of(x: Tensor, restored: Tensor, is_out: Tensor, is_clipped: Tensor) -> Tensor:
    """Return the same of masks. x: float64; all [..., head_dim]."""
    squares = (x - restored).square() * is_clipped
    return torch.stack([is_out.sum(-1).double(), is_clipped.sum(-1).double(), squares.sum(-1)], -1)
