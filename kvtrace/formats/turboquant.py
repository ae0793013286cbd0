"""turboquant_*: K as e4m3 or as Lloyd-Max codes of the rotated unit vector, V as uniform codes.

Source: vLLM 0.32, `layers/quantization/turboquant`, `ops/triton_turboquant_{store,decode}.py`. The rotation
is a Hadamard matrix without signs, the same in every layer. nc: the vector of centroids is scaled back to
unit length before it is rotated back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from kvtrace.formats.coding import Limits, RowCoding, is_power_of_two
from kvtrace.formats.format import FIRST_CHUNK, CacheFormat, Fact, Place
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel


@dataclass(frozen=True, slots=True)
class UnscaledFp8(RowCoding):
    """e4m3 of the value itself: beyond 448 it clips, and no scale can help."""

    limits: ClassVar[Limits | None] = Limits(E4M3FN.max_value, E4M3FN.clip_threshold("nearest"))

    def num_bytes(self, head_dim: int) -> int:
        """Return a byte a value."""
        return head_dim

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it takes none
        """Return the values."""
        from kvtrace.formats.tensors.steps import e4m3

        return e4m3(x.float())

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.turboquant import unscaled_kernel

        return unscaled_kernel()


@dataclass(frozen=True, slots=True)
class LloydMax(RowCoding):
    """The nearest centroids of the rotated unit vector, and its norm in float16."""

    bits: int

    def num_bytes(self, head_dim: int) -> int:
        """Return the codes' bytes and the norm's two."""
        return -(-head_dim * self.bits // 8) + 2

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with a length that no Hadamard matrix has."""
        return None if is_power_of_two(head_dim) else f"head size {head_dim} is not a power of two"

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values, rotated back."""
        from kvtrace.formats.tensors.turboquant import lloyd_max_round_trip

        return lloyd_max_round_trip(x, self.bits)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.centroids import centroids
        from kvtrace.formats.compiled.turboquant import lloyd_max_kernel

        return lloyd_max_kernel(centroids(head_dim, self.bits), head_dim)


@dataclass(frozen=True, slots=True)
class Uniform(RowCoding):
    """min + code · scale, both in float16, of each token and head."""

    bits: int

    def num_bytes(self, head_dim: int) -> int:
        """Return the codes' bytes, two for the scale and two for the minimum."""
        return -(-head_dim * self.bits // 8) + 4

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values."""
        from kvtrace.formats.tensors.turboquant import uniform_round_trip

        return uniform_round_trip(x, self.bits)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.turboquant import uniform_kernel

        return uniform_kernel(self.bits)


_PLACES: Final = (Place("TURBOQUANT", "CUDA, ROCm and XPU; head size a power of two; no attention sinks"),)
_FP8E4B15: Final = Fact("k-in-fp8e4b15", "below SM89 K is stored as fp8e4b15, whose largest value is 1.875")


def _preset(name: str, k: RowCoding, v: RowCoding, *more: Fact) -> CacheFormat:
    facts = (FIRST_CHUNK, *more)
    return CacheFormat(name, k, v, _PLACES, keeps_boundary_layers=True, slot_align=2, facts=facts)


FORMATS: Final = (
    _preset(
        "turboquant_k8v4",
        UnscaledFp8(),
        Uniform(4),
        _FP8E4B15,
    ),
    _preset("turboquant_4bit_nc", LloydMax(4), Uniform(4)),
    _preset("turboquant_k3v4_nc", LloydMax(3), Uniform(4)),
    _preset("turboquant_3bit_nc", LloydMax(3), Uniform(3)),
)
