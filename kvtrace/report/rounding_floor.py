"""The SQNR that FP8 rounding alone leaves: no scale does better."""

from __future__ import annotations

import math
from typing import Final

_MANTISSA_BITS: Final = {"e4m3fn": 3, "e4m3fnuz": 3, "e5m2": 2}
_TRUNCATING_ENGINES: Final = frozenset({"vllm-cpu"})
_MEAN_SQUARE: Final = 3 / (2 * math.log(2))
"""Of a mantissa in [1, 2) whose logarithm is uniform."""


def rounding_floor_db(fp8_format: str | None, engine: str | None) -> float | None:
    """Return the SQNR in dB of values spread evenly over the binades of `fp8_format`; None: unknown.

    A step is 2^-M of the binade; rounding to nearest errs by step²/12 on average, truncation by step²/3.

    >>> round(rounding_floor_db("e4m3fn", "vllm-cuda"), 1)
    32.2
    >>> round(rounding_floor_db("e4m3fn", "vllm-cpu"), 1)
    26.2
    """
    bits = _MANTISSA_BITS.get(fp8_format or "")
    if bits is None:
        return None
    mean_square_error = 4.0**-bits / (3 if engine in _TRUNCATING_ENGINES else 12)
    return 10 * math.log10(_MEAN_SQUARE / mean_square_error)
