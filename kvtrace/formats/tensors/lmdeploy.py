"""lmdeploy_int8 and lmdeploy_int4 in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def round_trip(x: Tensor, bits: int) -> Tensor:
    """Return what the cache gives back, float32. x: [..., head_dim]; scale and zero-point take its dtype.

    A vector of one value throughout has no scale: the kernel divides by 0 there. It comes back as it is.

    >>> round_trip(torch.tensor([0.0, 15.0, 3.4]), 4).tolist()
    [0.0, 15.0, 3.0]
    """
    wide, largest = x.float(), 2**bits - 1
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = (high - low) / largest
    zero_point = -low / scale
    codes = torch.trunc(wide / scale + zero_point + 0.5).clamp_(0, largest)
    restored = (codes - zero_point.to(x.dtype).float()) * scale.to(x.dtype).float()
    return torch.where(high == low, wide, restored)
