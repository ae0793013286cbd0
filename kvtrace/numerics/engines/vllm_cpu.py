"""vLLM's CPU attention (`cpu_attn_reshape_and_cache`): multiplies by 1/scale, then truncates toward zero.

Compared with the operator of vLLM 0.32 over all bf16 and fp16 patterns: NaN becomes +max, ±inf ±max,
±0 becomes 0x00, and a negative value that truncates to zero keeps its sign (0x80). E4M3 subnormals are not
truncated from x · (1/scale) itself but from its float32 sum with 2^-6, so a value up to 2^-30 below a step
already reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.numerics.engines.engine import Engine

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.numerics.formats import Fp8Format

_FLOAT32_MANTISSA_BITS: Final = 23
_FLOAT32_BIAS: Final = 127


def truncated_codes(y: Tensor, fmt: Fp8Format) -> Tensor:
    """Return the codes of `y` truncated toward zero. y: float32, any shape; overwritten. Returns uint8."""
    import torch  # it takes over a second to import: `engines` is read by every command

    y = torch.nan_to_num_(y, nan=fmt.max_value).clamp_(-fmt.max_value, fmt.max_value)
    magnitude = y.abs()
    smallest_normal = 2.0**fmt.min_exponent
    # Above the smallest normal the code is the top bits of the float32, its exponent re-biased.
    shift = _FLOAT32_MANTISSA_BITS - fmt.mantissa_bits
    rebias = (_FLOAT32_BIAS - fmt.exponent_bias) << fmt.mantissa_bits
    normal = (magnitude.view(torch.int32) >> shift) - rebias
    if fmt.name == "e4m3fn":
        sum_ = magnitude + smallest_normal
        subnormal = (sum_.view(torch.int32) >> shift) - rebias - (1 << fmt.mantissa_bits)
    else:
        subnormal = (magnitude / fmt.smallest_subnormal).int()
    codes = torch.where(magnitude < smallest_normal, subnormal, normal)
    return (codes | (y < 0).int() << 7).to(torch.uint8)


ENGINE: Final = Engine(
    name="vllm-cpu",
    product="vllm",
    formats=("e4m3fn", "e5m2"),
    rounding="truncate",
    platforms=("cpu",),
    default_on="cpu",
    multiplies=True,
    cast=truncated_codes,
    kernel="multiply-and-truncate",
)
