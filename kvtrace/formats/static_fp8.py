"""fp8_e4m3 and fp8_e5m2: one FP8 code a value, over a scale that was loaded beforehand.

Source: vLLM csrc, `scaled_convert`. What other engines compute is in `kvtrace.numerics.engines`; a replay of
these formats goes through those, over exact counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.formats.coding import Coding, Limits
from kvtrace.formats.format import CacheFormat, Fact, Place
from kvtrace.numerics.formats import E4M3FN, E5M2, find_format

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StaticFp8(Coding):
    """x̂ = scale · cast(x / scale)."""

    fp8_format: str
    """A name of `kvtrace.numerics.FORMATS`."""

    @property
    def loads_as(self) -> str:  # type: ignore[override]
        """Return the engine's dtype of its format."""
        return find_format(self.fp8_format).vllm_dtype

    @property
    def float_format(self) -> str | None:
        """Return its format."""
        return self.fp8_format

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        """Return the format's range."""
        found = find_format(self.fp8_format)
        return Limits(found.max_value, found.clip_threshold("nearest"))

    def num_bytes(self, head_dim: int) -> int:
        """Return a byte a value: the scale is the layer's."""
        return head_dim

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """Return the values as vLLM on CUDA reads them back."""
        from kvtrace.numerics import round_trip

        return round_trip(x, scale, format=self.fp8_format).restored


_E4M3: Final = CacheFormat(
    "fp8_e4m3",
    StaticFp8(E4M3FN.name),
    StaticFp8(E4M3FN.name),
    (
        Place("FLASH_ATTN", "SM90 with FA3, SM100 with FA4"),
        Place("FLASHINFER", "SM80 to SM12x"),
        Place("TRITON_ATTN", "SM89 and later"),
        Place("ROCM_*", "four backends"),
        Place("CPU_ATTN", "AVX-512 or AMX, head size a multiple of 32"),
    ),
)
_E5M2: Final = CacheFormat(
    "fp8_e5m2",
    StaticFp8(E5M2.name),
    StaticFp8(E5M2.name),
    (
        Place("FLASHINFER", "SM80 to SM12x"),
        Place("CPU_ATTN", "AVX-512 or AMX, head size a multiple of 32"),
        Place("ROCM_AITER_*", "all"),
    ),
    facts=(
        Fact(
            "e5m2-stored-as-e4m3",
            "through vLLM's Triton writer (TRITON_ATTN, ROCM_ATTN) the cache holds e4m3 bytes whatever was "
            "asked for",
        ),
        Fact("e5m2-refused", "checkpoints in FP8 refuse it"),
    ),
)
FORMATS: Final = (_E4M3, _E5M2)
