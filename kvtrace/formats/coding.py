"""How one tensor, K or V, is stored: the half of a cache format. One subclass a rule, beside its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Coding(ABC):
    """A rule that turns one token's vector of a KV head into bytes and back."""

    uses_scale: ClassVar[bool] = False
    """Whether it reads the layer's k_scale or v_scale; where not, an artifact changes nothing."""
    clips: ClassVar[bool] = False
    """Whether values can be out of its range; where not, clip counts are absent, not 0."""

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

    def beyond(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor | None:  # noqa: ARG002 -- of its kinds
        """Return values out of range, values clipped and their squared error; None where it does not clip.

        x and scale: as in `round_trip`. Returns [..., 3] float64.
        """
        return None

    def kernel(self, head_dim: int, dtype: str) -> Kernel | None:  # noqa: ARG002 -- of its kinds
        """Return its compiled form for the CPU, None where `round_trip` is all there is.

        dtype: of the captured values: bfloat16, float16 or float32.
        """
        return None


def is_power_of_two(number: int) -> bool:
    """Return whether a Hadamard matrix of Sylvester's kind has this size.

    >>> is_power_of_two(64), is_power_of_two(96)
    (True, False)
    """
    return number > 0 and number & (number - 1) == 0
