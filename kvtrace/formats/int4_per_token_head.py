"""int4_per_token_head: 4-bit codes of the rotated vector over each token and head's scale and zero-point.

Source: vLLM 0.32, `ops/int4_per_token_head.py`. K and V are both multiplied by fixed signs and a Hadamard
matrix, in blocks of the largest power of two that divides the head size, and rounded to the model's dtype.
The 4-bit zero-point takes the place of the scale's lowest mantissa bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.formats.coding import RowCoding
from kvtrace.formats.format import CacheFormat, Place

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel

SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RotatedUint4(RowCoding):
    """Codes 0 to 15 of (max − min) / 15 each."""

    def num_bytes(self, head_dim: int) -> int:
        """Return half a byte a value and the scale."""
        return head_dim // 2 + SCALE_BYTES

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with an odd length."""
        return f"head size {head_dim} is odd; two codes share a byte" if head_dim % 2 else None

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values, rotated back."""
        from kvtrace.formats.tensors.int4_per_token_head import round_trip

        return round_trip(x)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:
        """Return its compiled form."""
        from kvtrace.formats.compiled.int4_per_token_head import kernel
        from kvtrace.formats.tensors.int4_per_token_head import block_of, signs_of

        return kernel(signs_of(block_of(head_dim)).numpy(), dtype)


FORMATS: Final = (
    CacheFormat(
        "int4_per_token_head",
        RotatedUint4(),
        RotatedUint4(),
        (Place("TRITON_ATTN", "any GPU; head size 32 and more, even"),),
    ),
)
