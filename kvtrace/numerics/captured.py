"""The bits of captured values without their sign: codes, which order like the magnitudes they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.format import StoredDtype

MAX_FINITE_CODE: Final[dict[str, int]] = {"bfloat16": 0x7F7F, "float16": 0x7BFF, "float32": 0x7F7FFFFF}
"""Bits of the largest finite value."""


def largest_code(limit: NDArray[np.float32], dtype: StoredDtype | str) -> NDArray[np.int32]:
    """Return the largest finite code whose magnitude is at most the limit. limit: float32 ≥ 0, any shape.

    >>> codes = largest_code(np.array([1.0, 1.001, np.inf], np.float32), "bfloat16")
    >>> [hex(code) for code in codes.tolist()]
    ['0x3f80', '0x3f80', '0x7f7f']
    """
    most = MAX_FINITE_CODE[dtype]
    if dtype == "float16":
        codes = np.searchsorted(magnitudes_of(np.arange(most + 1), dtype), limit, side="right") - 1
        return codes.astype(np.int32)
    # A float32's bits order like magnitudes, and a bfloat16 is its upper half.
    bits = np.asarray(limit, np.float32).view(np.int32) >> (16 if dtype == "bfloat16" else 0)
    found: NDArray[np.int32] = np.minimum(bits, most).astype(np.int32)
    return found


def magnitudes_of(codes: NDArray[np.integer[Any]], dtype: StoredDtype | str) -> NDArray[np.float32]:
    """Return the magnitudes that the codes stand for, exact in float32. codes: integer, ≥ 0, any shape.

    >>> magnitudes_of(np.array([0x3F80, 0x7F80]), "bfloat16").tolist()
    [1.0, inf]
    """
    if dtype == "float16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float32)
    bits = codes.astype(np.uint32) << np.uint32(16 if dtype == "bfloat16" else 0)
    magnitudes: NDArray[np.float32] = bits.view(np.float32)
    return magnitudes
