"""The largest magnitude that a scale still covers, as a code of the captured dtype.

A vector is out of range exactly when its largest magnitude is: one integer per scale answers for all.
"""
# ruff: noqa: A002 -- `format` as in round_trip

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from kvtrace.numerics.casts import values_of_codes
from kvtrace.numerics.engines import find_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from kvtrace.trace.format import StoredDtype

MAX_FINITE_CODE: Final[dict[str, int]] = {"bfloat16": 0x7F7F, "float16": 0x7BFF, "float32": 0x7F7FFFFF}
"""Bits of the largest finite value; codes are the bits without the sign, so they order like magnitudes."""


def magnitude_of_codes(codes: Tensor, dtype: StoredDtype) -> Tensor:
    """Return the magnitudes that the codes stand for, in the captured dtype. codes: integer, any shape."""
    bits = torch.int32 if dtype == "float32" else torch.int16
    magnitudes: Tensor = codes.to(bits).view(getattr(torch, dtype))
    return magnitudes


def max_in_range_code(scale: Tensor, dtype: StoredDtype, *, engine: str, format: str) -> Tensor:
    """Return the largest magnitude code with |float32(x) / scale| ≤ the format's maximum.

    scale: float32, any shape, > 0. Returns int32, the shape of `scale`.

    >>> code = max_in_range_code(torch.tensor([1.0]), "bfloat16", engine="vllm-cuda", format="e4m3fn")
    >>> magnitude_of_codes(code, "bfloat16").tolist()
    [448.0]
    """
    _, fmt = find_pair(engine, format)
    return _largest_code(scale, dtype, lambda x: x.float() / scale <= fmt.max_value)


def max_unclipped_code(scale: Tensor, dtype: StoredDtype, *, engine: str, format: str) -> Tensor:
    """Return the largest magnitude code that the engine does not clip; else as `max_in_range_code`.

    >>> code = max_unclipped_code(torch.tensor([1.0]), "bfloat16", engine="vllm-cuda", format="e4m3fn")
    >>> magnitude_of_codes(code, "bfloat16").tolist()
    [464.0]
    """
    found, fmt = find_pair(engine, format)
    threshold = fmt.clip_threshold(found.rounding)
    if found.rounding == "nearest":
        return _largest_code(scale, dtype, lambda x: found.scale_down(x, scale) <= threshold)
    return _largest_code(scale, dtype, lambda x: found.scale_down(x, scale) < threshold)


def max_flushed_code(scale: Tensor, dtype: StoredDtype, *, engine: str, format: str) -> Tensor:
    """Return the largest magnitude code that comes back as 0; else as `max_in_range_code`.

    >>> code = max_flushed_code(torch.tensor([1.0]), "bfloat16", engine="vllm-cuda", format="e4m3fn")
    >>> magnitude_of_codes(code, "bfloat16").item() == 2.0**-10
    True
    """
    found, fmt = find_pair(engine, format)

    def is_flushed(x: Tensor) -> Tensor:
        return values_of_codes(found.to_codes(found.scale_down(x, scale), fmt), fmt) * scale == 0

    return _largest_code(scale, dtype, is_flushed)


def _largest_code(scale: Tensor, dtype: StoredDtype, is_within: Callable[[Tensor], Tensor]) -> Tensor:
    """Bisect: quotients grow with the magnitude. Zero counts as within."""
    low = torch.zeros_like(scale, dtype=torch.int64)
    high = torch.full_like(low, MAX_FINITE_CODE[dtype])
    for _ in range(MAX_FINITE_CODE[dtype].bit_length()):
        middle = (low + high + 1) // 2
        within = is_within(magnitude_of_codes(middle, dtype))
        low, high = torch.where(within, middle, low), torch.where(within, high, middle - 1)
    return low.int()
