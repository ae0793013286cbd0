"""auto: K and V in the model's own dtype, bfloat16 where nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from kvtrace.formats.coding import Coding
from kvtrace.formats.format import CacheFormat, Place

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Native(Coding):
    """The values as they are."""

    itemsize: int = 2
    """Bytes of one value: 2 in bfloat16 and float16, 4 in float32."""

    is_native: ClassVar[bool] = True

    def num_bytes(self, head_dim: int) -> int:
        """Return itemsize bytes a value."""
        return self.itemsize * head_dim

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has none
        """Return the values, exact in float32."""
        return x.float()


def native(itemsize: int = 2) -> CacheFormat:
    """Return the cache in the model's dtype. itemsize: its bytes."""
    return CacheFormat("auto", Native(itemsize), Native(itemsize), (Place("every backend", "everywhere"),))


FORMATS: Final = (native(),)
