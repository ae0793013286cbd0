"""Steps that several formats share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from kvtrace.numerics.casts import nearest_codes, values_of_codes
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from torch import Tensor

E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of a 4-bit float with two exponent bits and one mantissa bit."""


def blocks_of_size(x: Tensor, size: int) -> Tensor:
    """Return the vectors cut into blocks, [..., head_dim / size, size]. x: [..., head_dim]."""
    return x.reshape(*x.shape[:-1], -1, size)


def e4m3(x: Tensor) -> Tensor:
    """Return x rounded to e4m3 half to even, saturating at 448. x: float32, any shape.

    >>> e4m3(torch.tensor([0.3, 500.0])).tolist()
    [0.3125, 448.0]
    """
    return values_of_codes(nearest_codes(x.clone(), E4M3FN), E4M3FN)


def half_away(x: Tensor) -> Tensor:
    """Return x rounded to whole numbers, halves away from zero. x: float32, any shape.

    >>> half_away(torch.tensor([0.5, -2.5, 1.4])).tolist()
    [1.0, -3.0, 1.0]
    """
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


def e2m1(x: Tensor) -> Tensor:
    """Return x rounded to e2m1, ties to the even code, saturating at 6. x: float32, any shape.

    >>> e2m1(torch.tensor([0.25, 0.75, 2.5, -5.0, 9.0])).tolist()
    [0.0, 1.0, 2.0, -4.0, 6.0]
    """
    magnitude = x.abs().clamp_(max=E2M1[-1])
    # A step is 0.5 below 2, 1 below 4 and 2 above.
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.copysign(torch.round(magnitude / step) * step, x)


def e2m1_ties_down(x: Tensor) -> Tensor:
    """Return x rounded to e2m1, ties to the lower value, saturating at ±6. x: float32, any shape.

    >>> e2m1_ties_down(torch.tensor([0.25, 0.75, -0.75, 5.0, 9.0])).tolist()
    [0.0, 0.5, -1.0, 4.0, 6.0]
    """
    levels = torch.tensor([*(-v for v in reversed(E2M1[1:])), *E2M1], device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    return levels[torch.bucketize(x, middles)]
