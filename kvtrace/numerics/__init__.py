"""What each engine's FP8 cache write computes, bit by bit. Public: `quantize` and `dequantize`."""

from kvtrace.numerics.engines import DEFAULT_ENGINE, ENGINES, find_engine, find_pair
from kvtrace.numerics.formats import FORMATS, find_format
from kvtrace.numerics.round_trip import RoundTrip, dequantize, quantize, round_trip

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINES",
    "FORMATS",
    "RoundTrip",
    "dequantize",
    "find_engine",
    "find_format",
    "find_pair",
    "quantize",
    "round_trip",
]
