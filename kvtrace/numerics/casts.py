"""float32 to FP8 codes and back: the casts that the engines share."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.numerics.formats import Fp8Format

_FP16_MANTISSA_BITS: Final = 10
_FP16_BIAS: Final = 15


def nearest_codes(y: Tensor, fmt: Fp8Format) -> Tensor:
    """Return the codes of `y` rounded half to even, saturating at ±max_value; NaN stays NaN.

    y: float32, any shape; overwritten. Returns uint8.
    """
    # Whether torch's own cast saturates depends on the format and on torch's version: clamp first.
    y.clamp_(-fmt.max_value, fmt.max_value)
    codes: Tensor = y.to(getattr(torch, fmt.torch_dtype)).view(torch.uint8)
    return codes


def values_of_codes(codes: Tensor, fmt: Fp8Format) -> Tensor:
    """Return the float32 value of each code. codes: uint8, any shape."""
    # A table look-up: torch's cast from FP8 takes three times as long on a CPU.
    return torch.take(_value_table(fmt.torch_dtype, codes.device), codes.long())


def magnitudes_of_codes(codes: Tensor, fmt: Fp8Format) -> Tensor:
    """Return the float32 values of codes without a sign that are finite. codes: uint8, any shape.

    Five times faster on a CPU than `values_of_codes`: an FP8 code shifted to the top of an fp16 is that value
    but for the exponent's bias, subnormals included.
    """
    halves = (codes.short() << (_FP16_MANTISSA_BITS - fmt.mantissa_bits)).view(torch.float16)
    return halves.float().mul_(2.0 ** (_FP16_BIAS - fmt.exponent_bias))


@lru_cache(maxsize=16)
def _value_table(torch_dtype: str, device: torch.device) -> Tensor:
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    return codes.view(getattr(torch, torch_dtype)).float()
