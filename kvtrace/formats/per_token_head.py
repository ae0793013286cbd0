"""fp8_per_token_head and int8_per_token_head: 8-bit codes over a float32 scale of each token and head.

Source: vLLM 0.32, `ops/triton_reshape_and_cache_flash.py`: the scale is the vector's absmax over the largest
code, at least 1e-6, and values are multiplied by its reciprocal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvtrace.formats.coding import RowCoding
from kvtrace.formats.format import CacheFormat, Place

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel

SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class PerTokenHead(RowCoding):
    """x̂ = scale · code, scale = max(absmax / largest code, 1e-6)."""

    codes: Literal["e4m3fn", "int8"]

    @property
    def float_format(self) -> str | None:
        """Return e4m3fn, None of int8."""
        return "e4m3fn" if self.codes == "e4m3fn" else None

    def num_bytes(self, head_dim: int) -> int:
        """Return a byte a value and the scale."""
        return head_dim + SCALE_BYTES

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values; e4m3fn rounds half to even, int8 half away from zero."""
        from kvtrace.formats.tensors.per_token_head import round_trip

        return round_trip(x, self.codes)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.per_token_head import kernel

        return kernel(self.codes)


FORMATS: Final = (
    CacheFormat(
        "fp8_per_token_head",
        PerTokenHead("e4m3fn"),
        PerTokenHead("e4m3fn"),
        (Place("TRITON_ATTN", "SM89 and later; head size 32 and more"),),
    ),
    CacheFormat(
        "int8_per_token_head",
        PerTokenHead("int8"),
        PerTokenHead("int8"),
        (Place("TRITON_ATTN", "any GPU; head size 32 and more"),),
    ),
)
