"""nvfp4 and nvfp4_4over6 in torch."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kvtrace.formats.tensors.steps import blocks_of_size, e2m1, e4m3

_BLOCK: Final = 16
_DIVISORS: Final = (6.0, 4.0)


def round_trip(x: Tensor, scale: Tensor | float = 1.0, *, tries_four: bool = False) -> Tensor:
    """Return what the cache gives back, float32. x: [..., head_dim]. scale: broadcastable to [..., 1].

    >>> round_trip(torch.tensor([4.0, 3.0, 2.0, 1.0] + [0.0] * 12), tries_four=True)[:4].tolist()
    [4.0, 3.0, 2.0, 1.0]
    """
    blocks = blocks_of_size(x.float(), _BLOCK)
    whole = torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    # One scale a vector or for all: a last axis for the values of a block.
    whole = whole.unsqueeze(-1) if whole.ndim else whole
    absmax = blocks.abs().amax(-1, keepdim=True)
    six = _blocks(blocks, absmax, whole, _DIVISORS[0])
    if not tries_four:
        return six.flatten(-2)
    four = _blocks(blocks, absmax, whole, _DIVISORS[1])
    is_better = _squares(four, blocks) < _squares(six, blocks)
    return torch.where(is_better, four, six).flatten(-2)


def block_scales(absmax: Tensor, whole: Tensor, divisor: float) -> Tensor:
    """Return the e4m3 scales of blocks, float32. whole: the layer's scale; both broadcast."""
    return e4m3(whole.reciprocal() * (absmax * _reciprocal(divisor)))


def _blocks(x: Tensor, absmax: Tensor, whole: Tensor, divisor: float) -> Tensor:
    scale = block_scales(absmax, whole, divisor)
    # As the kernel has it: by the reciprocal of the product with 1 / (1 / k_scale).
    inverse = (scale * whole.reciprocal().reciprocal()).reciprocal()
    codes = e2m1(x * torch.where(scale == 0, 0, inverse))
    return codes * scale * whole


def _squares(restored: Tensor, x: Tensor) -> Tensor:
    return (restored - x).square().sum(-1, keepdim=True)


def _reciprocal(divisor: float) -> Tensor:
    return torch.tensor(divisor).reciprocal()
