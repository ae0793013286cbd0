"""What rounding alone loses, whatever the scale."""

from __future__ import annotations

import math
from typing import Final

from kvtrace.numerics.engines import ENGINES
from kvtrace.numerics.formats import FORMATS, Rounding

_STEPS_SQUARED: Final[dict[Rounding, int]] = {"nearest": 12, "truncate": 3}
"""A step errs by its square over this on average, where every place within it is as likely."""


def rounding_floor_db(engine: str | None, fmt: str | None) -> float | None:
    """Return the SQNR in dB that rounding to `fmt` leaves, for mantissas whose logarithm is uniform.

    A step is 2^-mantissa_bits of the binade. No scale does better. engine: a name of
    `kvtrace.numerics.ENGINES`; any other rounds to nearest. None: `fmt` is no float format (int8), or nothing
    is quantized.

    >>> round(rounding_floor_db("vllm-cuda", "e4m3fn"), 2), round(rounding_floor_db("vllm-cpu", "e4m3fn"), 2)
    (32.21, 26.19)
    >>> rounding_floor_db("vllm-cuda", "int8")
    """
    if fmt not in FORMATS:
        return None
    rounding = ENGINES[engine].rounding if engine in ENGINES else "nearest"
    steps = 4 ** FORMATS[fmt].mantissa_bits
    return 10 * math.log10(3 / (2 * math.log(2)) * steps * _STEPS_SQUARED[rounding])
