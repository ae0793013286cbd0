"""ultraquant_4bit in torch."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kvtrace.formats.tensors.rotation import hadamard
from kvtrace.formats.tensors.steps import blocks_of_size, e2m1_ties_down

_GROUP: Final = 32
_FACTOR: Final = 0.156
_EXPONENTS: Final = (-126, 127)


def round_trip(x: Tensor, *, rotated: bool) -> Tensor:
    """Return what the cache gives back, float32. x: [..., head_dim], a power of two from 32 on.

    >>> round_trip(torch.tensor([1.0] + [0.1] * 31), rotated=False)[:2].tolist()
    [0.75, 0.125]
    """
    wide = hadamard(x.float()) if rotated else x.float()
    groups = blocks_of_size(wide, _GROUP)
    absmax = groups.abs().amax(-1, keepdim=True)
    exponent = torch.floor(torch.log2(_FACTOR * absmax) + 0.5).clamp_(*_EXPONENTS)
    scale = torch.where(absmax > 0, torch.exp2(exponent), 1)  # of nothing but zeros any does
    restored = (e2m1_ties_down(groups / scale) * scale).flatten(-2)
    return hadamard(restored) if rotated else restored
