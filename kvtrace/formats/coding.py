"""How one tensor, K or V, is stored: the half of a cache format. One subclass a rule, beside its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel


class Limits(NamedTuple):
    """Magnitudes over the layer's scale; over 1.0 where a coding takes none."""

    in_range: float
    """Beyond it a value is out of range."""
    unclipped: float
    """Beyond it a value is clipped: rounding alone does not leave the largest code."""


@dataclass(frozen=True, slots=True)
class Coding(ABC):
    """A rule that turns one token's vector of a KV head into bytes and back."""

    loads_as: ClassVar[str | None] = None
    """The cache dtype for which a loader hands it the layer's k_scale or v_scale; None: it reads neither, and
    an artifact changes nothing."""
    is_native: ClassVar[bool] = False
    """Whether it leaves the values as they are."""
    limits: ClassVar[Limits | None] = None
    """Where its range ends; None: it has none, each vector's own scale covers it."""

    @property
    def uses_scale(self) -> bool:
        """Return whether it reads the layer's k_scale or v_scale."""
        return self.loads_as is not None

    @property
    def float_format(self) -> str | None:
        """Return the FP8 format that every value is rounded to over one scale; None: it is otherwise."""
        return None

    @abstractmethod
    def num_bytes(self, head_dim: int) -> int:
        """Return the bytes of one vector of `head_dim` values, its own scales included."""

    def why_not(self, head_dim: int) -> str | None:  # noqa: ARG002 -- of its kinds
        """Return why it takes no vectors of this length, None where it does."""
        return None

    @abstractmethod
    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """Return what attention reads back for `x`, in the basis of `x`, not rotated.

        x: [..., head_dim], bfloat16, float16 or float32, all finite. scale: the layer's k_scale or v_scale,
        float32 > 0, broadcastable to x; ignored without `uses_scale`. Returns float32, the shape of x.
        """


@dataclass(frozen=True, slots=True)
class RowCoding(Coding):
    """A coding whose codes depend on the whole vector, so that counts of values do not tell its error."""

    @abstractmethod
    def kernel(self, head_dim: int, dtype: str) -> Kernel:
        """Return its compiled form for the CPU, which gives what `round_trip` gives.

        dtype: of the captured values: bfloat16, float16 or float32.
        """


def is_power_of_two(number: int) -> bool:
    """Return whether a Hadamard matrix of Sylvester's kind has this size.

    >>> is_power_of_two(64), is_power_of_two(96)
    (True, False)
    """
    return number > 0 and number & (number - 1) == 0
