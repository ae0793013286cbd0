"""The codings of turboquant_* in torch."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kvtrace.formats.centroids import centroids
from kvtrace.formats.tensors.rotation import hadamard

_SMALLEST_SCALE: Final = 1e-8
_NORM_GUARD: Final = 1e-8
_LENGTH_GUARD: Final = 1e-16


def lloyd_max_round_trip(x: Tensor, bits: int) -> Tensor:
    """Return what the cache gives back, float32. x: [..., head_dim], a power of two.

    >>> lloyd_max_round_trip(torch.tensor([8.0] + [0.0] * 63), 3)[:2].tolist()
    [8.0, 0.0]
    """
    wide = x.float()
    norm = wide.square().sum(-1, keepdim=True).sqrt()
    values = torch.from_numpy(centroids(x.shape[-1], bits)).to(x.device)
    middles = (values[1:] + values[:-1]) / 2
    # right: a coordinate on a midpoint goes up.
    nearest = values[torch.bucketize(hadamard(wide / (norm + _NORM_GUARD)), middles, right=True)]
    unit = nearest / (nearest.square().sum(-1, keepdim=True) + _LENGTH_GUARD).sqrt()
    restored: Tensor = norm.half().float() * hadamard(unit)
    return restored


def uniform_round_trip(x: Tensor, bits: int) -> Tensor:
    """Return what the cache gives back, float32. x: [..., head_dim].

    >>> uniform_round_trip(torch.tensor([0.0, 7.0, 3.4]), 3).tolist()
    [0.0, 7.0, 3.0]
    """
    wide, largest = x.float(), 2**bits - 1
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = ((high - low) / largest).clamp_(min=_SMALLEST_SCALE)
    # The codes are of the scale as computed, the values of the one as stored.
    codes = torch.trunc((wide - low) / scale + 0.5).clamp_(0, largest)
    restored: Tensor = codes * scale.half().float() + low.half().float()
    return restored
