"""float32 to bfloat16 and back: what a scale becomes in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def bfloat16_bits(values: Sequence[float] | NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even. values: finite.

    >>> [hex(b) for b in bfloat16_bits([1.0, 0.036830358])]
    ['0x3f80', '0x3d17']
    """
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def nearest_bfloat16(values: Sequence[float] | NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return the values as they will be read back from the file."""
    return (bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32)
