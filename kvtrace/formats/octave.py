"""octave_*: K and V as Lloyd-Max codes of rotated blocks, with a float16 scale for each block.

Source: vLLM 0.33, `ops/rocm_octave.py`, its PyTorch reference. K of octave_k3v4 and octave_k3v3 is rotated in
blocks of 64: those of rotary dimensions get 4-bit codes, the others 3-bit ones. K of octave_k3v3_compact is
one block of 3-bit codes, and so is V of all three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvtrace.formats.coding import RowCoding, is_power_of_two
from kvtrace.formats.format import CacheFormat, Place

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel

BLOCK: Final = 64
WIDE_BITS: Final = 4
NARROW_BITS: Final = 3


@dataclass(frozen=True, slots=True)
class Blocks(RowCoding):
    """Blocks of 64 values, the rotary ones in 4 bits."""

    rotary_dim: int | None = None
    """Values of a vector that are rotary, its first; None: all."""

    def wide_dim(self, head_dim: int) -> int:
        """Return how many values get 4 bits."""
        return head_dim if self.rotary_dim is None else self.rotary_dim

    def num_bytes(self, head_dim: int) -> int:
        """Return the codes' bytes and two for every block."""
        wide = self.wide_dim(head_dim)
        codes = wide * WIDE_BITS // 8 + (head_dim - wide) * NARROW_BITS // 8
        return codes + 2 * (head_dim // BLOCK)

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with lengths that are no multiples of 64."""
        wide = self.wide_dim(head_dim)
        if head_dim % BLOCK or wide % BLOCK or wide > head_dim:
            return f"head size {head_dim} with {wide} rotary values: both must be multiples of {BLOCK}"
        return None

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values, rotated back."""
        from kvtrace.formats.tensors.octave import blocks_round_trip

        return blocks_round_trip(x, self.wide_dim(x.shape[-1]))

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.octave import blocks_kernel
        from kvtrace.formats.tensors.octave import quantizer, signs_of

        return blocks_kernel(
            signs_of(head_dim).numpy(), self.wide_dim(head_dim), quantizer(WIDE_BITS), quantizer(NARROW_BITS)
        )


@dataclass(frozen=True, slots=True)
class WholeVector(RowCoding):
    """The vector as one block; of 64 values each where its length is not a power of two, with one scale."""

    bits: int
    must_be_whole: bool = False
    """Whether another length than a power of two is refused."""

    def num_bytes(self, head_dim: int) -> int:
        """Return the codes' bytes and the scale's two."""
        return head_dim * self.bits // 8 + 2

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with a length that does not fall into blocks."""
        if head_dim % BLOCK:
            return f"head size {head_dim} is not a multiple of {BLOCK}"
        if self.must_be_whole and not is_power_of_two(head_dim):
            return f"head size {head_dim} is not a power of two"
        return None

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values, rotated back."""
        from kvtrace.formats.tensors.octave import whole_round_trip

        return whole_round_trip(x, self.bits)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.octave import whole_kernel
        from kvtrace.formats.tensors.octave import quantizer, rotated_block, signs_of

        return whole_kernel(signs_of(head_dim).numpy(), rotated_block(head_dim), *quantizer(self.bits))


def with_rotary_dim(form: CacheFormat, rotary_dim: int) -> CacheFormat:
    """Return a format for a model whose first `rotary_dim` values of K are rotary; others are unchanged."""
    return replace(form, k=Blocks(rotary_dim)) if isinstance(form.k, Blocks) else form


_PLACES: Final = (Place("ROCM_OCTAVE", "vLLM 0.33 on gfx1100 and gfx942; head size a multiple of 64"),)
FORMATS: Final = (
    CacheFormat("octave_k3v4", Blocks(), WholeVector(4), _PLACES, slot_align=8),
    CacheFormat("octave_k3v3", Blocks(), WholeVector(3), _PLACES, slot_align=8),
    CacheFormat(
        "octave_k3v3_compact", WholeVector(3, must_be_whole=True), WholeVector(3), _PLACES, slot_align=4
    ),
)
