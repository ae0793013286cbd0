"""What each engine's FP8 cache write computes, bit by bit. Public: `quantize` and `dequantize`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvtrace.numerics.engines import DEFAULT_ENGINE, ENGINES, find_engine, find_pair
from kvtrace.numerics.formats import FORMATS, find_format

if TYPE_CHECKING:
    from kvtrace.numerics.elementwise import RoundTrip, dequantize, quantize, round_trip

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

_ON_TENSORS = ("RoundTrip", "dequantize", "quantize", "round_trip")


def __getattr__(name: str) -> Any:
    # torch takes over a second to import: a replay over a ready profile does without.
    if name in _ON_TENSORS:
        return getattr(import_module("kvtrace.numerics.elementwise"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
