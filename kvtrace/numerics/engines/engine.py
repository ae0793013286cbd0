"""What an engine's write path is made of: `casts` computes with it on tensors, `compiled` on magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.numerics.formats import Rounding


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine turns K and V into FP8 codes: x over scale, perhaps rounded, then cast to the format."""

    name: str
    product: str
    """What serves with it, as a trace names it: `vllm`, `sglang`."""
    formats: tuple[str, ...]
    """Names of the formats its write path offers; the first is its default."""
    rounding: Rounding
    exactness: str
    """What is known about equality with the engine, for people."""
    multiplies: bool = False
    """x · (1/scale) in float32, instead of x / scale."""
    rounds_quotient: tuple[str, ...] = ()
    """Captured dtypes whose quotient is rounded to that dtype before the cast."""

    def divides_in_float32(self, dtype: str) -> bool:
        """Return whether a value of that dtype reaches the cast as float32(x) / scale, rounded once."""
        return not self.multiplies and dtype not in self.rounds_quotient
