"""The KV cache formats that engines offer, one file each: what they cost and what they do to K and V.

`find_format` gives one by the engine's name, `parse_format` a pair of two and several by layer as well. Sizes
and layers need no torch; round trips do.
"""

from kvtrace.formats.format import CacheFormat, Fact, Place
from kvtrace.formats.layered import AnyFormat, LayeredFormat, parse_format, vllm_flags
from kvtrace.formats.named import FORMATS, find_format, why_refused
from kvtrace.formats.octave import with_rotary_dim

__all__ = [
    "FORMATS",
    "AnyFormat",
    "CacheFormat",
    "Fact",
    "LayeredFormat",
    "Place",
    "find_format",
    "parse_format",
    "vllm_flags",
    "why_refused",
    "with_rotary_dim",
]
