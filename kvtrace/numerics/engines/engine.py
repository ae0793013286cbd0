"""What an engine's write path is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from kvtrace.numerics.formats import Fp8Format, Rounding


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine turns K and V into FP8 codes."""

    name: str
    formats: tuple[str, ...]
    """Names of the formats its write path offers; the first is its default."""
    rounding: Rounding
    scale_down: Callable[[Tensor, Tensor], Tensor]
    """(x as it reaches the cache, float32 scale) → new float32 tensor, x over scale as the engine has it."""
    to_codes: Callable[[Tensor, Fp8Format], Tensor]
    """(y, format) → uint8 codes; may overwrite y."""
    divides_in_float32: bool
    """Whether y is exactly float32(x) / float32(scale)."""
    exactness: str
    """What is known about equality with the engine, for people."""


def divide_in_float32(x: Tensor, scale: Tensor) -> Tensor:
    """Return float32(x) / scale, rounded once."""
    return x.float() / scale
