"""What an engine's write path is made of: `casts` computes with it on tensors, `compiled` on magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from kvtrace.numerics.formats import Fp8Format, Rounding

Kernel = Literal["divide", "divide-and-round", "multiply-and-truncate"]
"""The cache writes that `numerics.compiled` knows. divide-and-round: the quotient is rounded to the captured
dtype in those of `Engine.rounds_quotient`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine turns K and V into FP8 codes: x over scale, perhaps rounded, then cast to the format.

    Its form on tensors, which runs on CPU and GPU, is made of these rules; its compiled one is optional.
    """

    name: str
    product: str
    """What serves with it, as a trace names it: `vllm`, `sglang`."""
    formats: tuple[str, ...]
    """Names of the formats its write path offers; the first is its default."""
    rounding: Rounding
    """From where on values are clipped follows from it, and the cast where the engine has none of its own."""
    platforms: tuple[str, ...] = ()
    """Of `kvtrace.trace.platforms`: where its product's backends can write so."""
    default_on: str | None = None
    """The platform on which a backend that kvtrace does not know is taken to write so."""
    writes_native_format: bool = False
    """It stores the platform's own E4M3, whatever cache dtype was asked for."""
    multiplies: bool = False
    """x · (1/scale) in float32, instead of x / scale."""
    rounds_quotient: tuple[str, ...] = ()
    """Captured dtypes whose quotient is rounded to that dtype before the cast."""
    cast: Callable[[Tensor, Fp8Format], Tensor] | None = None
    """Its own cast of float32 quotients, which it may overwrite, to uint8 codes. None: half to even,
    saturating."""
    kernel: Kernel | None = None
    """Its compiled form for the CPU. None: `numerics.error_counts` counts on tensors instead, slower."""

    def divides_in_float32(self, dtype: str) -> bool:
        """Return whether a value of that dtype reaches the cast as float32(x) / scale, rounded once."""
        return not self.multiplies and dtype not in self.rounds_quotient

    def rounds_once(self, dtype: str) -> bool:
        """Return whether its code is the one nearest to x / scale, ties to even: the rules of FP8 alone."""
        return self.cast is None and self.divides_in_float32(dtype)
