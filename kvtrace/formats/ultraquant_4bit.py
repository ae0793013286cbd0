"""ultraquant_4bit: e2m1 codes with a power of two for every 32 values; K is rotated, V is not.

Source: vLLM 0.32, `ops/ultraquant/{format,reference,triton_store}.py`. A group's scale is 2^round(log2(0.156
absmax)); ties of the codes go down. Its largest value may lie above the largest code, on
purpose: no head has left a range then, and it counts as rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.formats.coding import RowCoding, is_power_of_two
from kvtrace.formats.format import FIRST_CHUNK, CacheFormat, Place

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel

GROUP: Final = 32


@dataclass(frozen=True, slots=True)
class GroupedE2m1(RowCoding):
    """x̂ = code · 2^e."""

    rotated: bool
    """Whether the vector is multiplied by a Hadamard matrix first."""

    def num_bytes(self, head_dim: int) -> int:
        """Return half a byte a value and one for every group."""
        return head_dim // 2 + head_dim // GROUP

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with a length that has no rotation or does not fall into groups."""
        if is_power_of_two(head_dim) and head_dim % GROUP == 0:
            return None
        return f"head size {head_dim} is not a power of two from {GROUP} on"

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values, rotated back."""
        from kvtrace.formats.tensors.ultraquant_4bit import round_trip

        return round_trip(x, rotated=self.rotated)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.ultraquant_4bit import kernel

        return kernel(self.rotated, head_dim)


FORMATS: Final = (
    CacheFormat(
        "ultraquant_4bit",
        GroupedE2m1(rotated=True),
        GroupedE2m1(rotated=False),
        (Place("ULTRAQUANT", "ROCm: gfx950, elsewhere through Triton; bfloat16 models"),),
        keeps_boundary_layers=True,
        query_form="rotated fp8",
        facts=(FIRST_CHUNK,),
    ),
)
