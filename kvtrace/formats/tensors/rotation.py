"""Hadamard rotations of vectors, by sums and differences."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sums_and_differences(x: Tensor) -> Tensor:
    """Return x times Sylvester's Hadamard matrix, not normalised. x: [..., 2^n], float32.

    >>> sums_and_differences(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [10.0, -2.0, -4.0, 0.0]
    """
    size, half = x.shape[-1], 1
    y = x.reshape(-1, size)
    while half < size:
        pairs = y.view(-1, size // (2 * half), 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        y = torch.stack((low + high, low - high), dim=2).view(-1, size)
        half *= 2
    return y.view(x.shape)


def hadamard(x: Tensor) -> Tensor:
    """Return the same divided by √size: lengths stay, and twice gives x back."""
    return sums_and_differences(x) * (1 / math.sqrt(x.shape[-1]))
