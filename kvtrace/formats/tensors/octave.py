"""The codings of octave_* in torch."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from kvtrace.formats.tensors.rotation import hadamard
from kvtrace.formats.tensors.steps import blocks_of_size

_BLOCK: Final = 64
_SEED: Final = 0x5E17
_LEVELS: Final = {
    3: (-127, -79, -45, -14, 14, 45, 79, 127),
    4: (-126, -95, -74, -58, -43, -30, -18, -6, 6, 18, 30, 43, 58, 74, 95, 126),
}
"""Lloyd-Max levels of a normal variable, as int8."""
_UNIT: Final = {3: 59.0, 4: 46.0}
"""What one standard deviation is in those."""
_FIXED_POINT: Final = 64.0
"""Stored scales are multiplied by it, so that small ones are no float16 subnormals."""
_SMALLEST: Final = 1e-12
_SMALLEST_PRODUCT: Final = 1e-30


@lru_cache(maxsize=16)
def signs_of(size: int) -> Tensor:
    """Return the ±1 before the rotation, [size] float32: the same in every layer, head and run."""
    generator = torch.Generator().manual_seed(_SEED)
    return (torch.randint(0, 2, (size,), generator=generator, dtype=torch.int64) * -2 + 1).float()


def quantizer(bits: int) -> tuple[tuple[int, ...], float]:
    """Return the levels, and what one standard deviation is in them."""
    return _LEVELS[bits], _UNIT[bits]


def rotated_block(size: int) -> int:
    """Return how many values are rotated together where a vector has one scale: all that can be."""
    return size if size & (size - 1) == 0 else _BLOCK


def blocks_round_trip(x: Tensor, wide_dim: int) -> Tensor:
    """Return K of octave_k3v4 and octave_k3v3, float32: 4 bits for the first `wide_dim` values, then 3."""
    blocks = _rotated(x, _BLOCK)
    num_wide = wide_dim // _BLOCK
    parts = (_quantized(blocks[..., :num_wide, :], 4), _quantized(blocks[..., num_wide:, :], 3))
    return _rotated_back(torch.cat(parts, -2))


def whole_round_trip(x: Tensor, bits: int) -> Tensor:
    """Return V, and K of octave_k3v3_compact, float32: one scale a vector."""
    y = _rotated(x, rotated_block(x.shape[-1]))
    return _rotated_back(_quantized(y.flatten(-2), bits).view(y.shape))


def _rotated(x: Tensor, block: int) -> Tensor:
    signed = x.float() * signs_of(x.shape[-1]).to(x.device)
    return hadamard(blocks_of_size(signed, block))


def _rotated_back(blocks: Tensor) -> Tensor:
    flat = hadamard(blocks).flatten(-2)
    return flat * signs_of(flat.shape[-1]).to(flat.device)


def _quantized(x: Tensor, bits: int) -> Tensor:
    """Return the values read back of vectors with a scale each. The scale keeps x · x̂ = |x|²."""
    levels = torch.tensor(_LEVELS[bits], dtype=torch.float32, device=x.device)
    energy = x.square().sum(-1, keepdim=True)
    deviation = (energy / x.shape[-1]).sqrt().clamp_min(_SMALLEST)
    nearest = levels[torch.bucketize(x / deviation * _UNIT[bits], (levels[1:] + levels[:-1]) / 2)]
    product = (x * nearest).sum(-1, keepdim=True)
    scale = torch.where(product > 0, energy / product.clamp_min(_SMALLEST_PRODUCT), 0) * _FIXED_POINT
    return nearest * (scale.half().float() / _FIXED_POINT)
