"""int4_per_token_head in torch."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from kvtrace.formats.tensors.rotation import sums_and_differences
from kvtrace.formats.tensors.steps import blocks_of_size, half_away

_SEED: Final = 0x9E3779B9
_SMALLEST_SCALE: Final = 1e-6
_LARGEST_CODE: Final = 15.0
_ZERO_POINT_BITS: Final = 0xF


def block_of(head_dim: int) -> int:
    """Return the largest power of two that divides the head size.

    >>> block_of(64), block_of(96)
    (64, 32)
    """
    return head_dim & -head_dim


@lru_cache(maxsize=16)
def signs_of(block: int) -> Tensor:
    """Return the ±1 before the rotation, [block] float32: the same in every layer, head and run."""
    generator = torch.Generator().manual_seed(_SEED)
    return 2 * torch.bernoulli(torch.full((block,), 0.5), generator=generator) - 1


def rotated(x: Tensor) -> Tensor:
    """Return the vector that is quantized, in the dtype of x. x: [..., head_dim]."""
    block = block_of(x.shape[-1])
    y = sums_and_differences(blocks_of_size(x.float(), block) * signs_of(block).to(x.device))
    return y.flatten(-2).to(x.dtype)


def codes_of(r: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes 0 to 15, float32, and the scale as stored, float32 [..., 1]. r: [..., head_dim]."""
    wide = r.float()
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = ((high - low) / _LARGEST_CODE).clamp_(min=_SMALLEST_SCALE)
    zero_point = half_away(-low / scale).clamp_(0, _LARGEST_CODE)
    codes = half_away(wide * scale.reciprocal() + zero_point).clamp_(0, _LARGEST_CODE)
    bits = (scale.view(torch.int32) & ~_ZERO_POINT_BITS) | zero_point.int()
    return codes, bits.view(torch.float32)


def values_of(codes: Tensor, stored: Tensor) -> Tensor:
    """Return the rotated vector that is read back, float32. stored: the scale that `codes_of` gives."""
    bits = stored.view(torch.int32)
    scale = (bits & ~_ZERO_POINT_BITS).view(torch.float32)
    return (codes - (bits & _ZERO_POINT_BITS)) * scale


def round_trip(x: Tensor) -> Tensor:
    """Return what the cache gives back, float32, rotated back. x: [..., head_dim]."""
    block = block_of(x.shape[-1])
    restored = blocks_of_size(values_of(*codes_of(rotated(x))), block)
    return (sums_and_differences(restored) * signs_of(block).to(x.device) / block).flatten(-2)
