"""What an engine's cache dtype means for scales: nothing quantized, static FP8, or another quantized cache.

The names are vLLM's `--kv-cache-dtype`, as a trace records them for every layer.
Source: vLLM 0.32, `config/cache.py` (`CacheDType`); from 0.33 on a plug-in may register names of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

CacheKind = Literal["unquantized", "static_fp8", "other"]
"""static_fp8: codes of K and V over scales that were loaded beforehand, the only cache whose scales an
artifact gives and a replay with given scales reproduces. other: quantized in another way, or by a name that
kvtrace does not know."""

_UNQUANTIZED: Final = ("auto", "bfloat16", "float16", "half")
_STATIC_FP8: Final = ("fp8", "fp8_e4m3", "fp8_e5m2")


def cache_kind(dtype: str) -> CacheKind:
    """Return what a cache dtype is.

    >>> cache_kind("auto"), cache_kind("fp8_e4m3"), cache_kind("fp8_per_token_head"), cache_kind("fp7")
    ('unquantized', 'static_fp8', 'other', 'other')
    """
    if dtype in _UNQUANTIZED:
        return "unquantized"
    return "static_fp8" if dtype in _STATIC_FP8 else "other"


def common_kind(dtypes: Iterable[str]) -> CacheKind:
    """Return what the caches of several layers are taken together: `other` where any is, else static FP8.

    Layers that an engine leaves unquantized do not change what the others are.

    >>> common_kind(["auto", "fp8"]), common_kind(["fp8", "nvfp4"]), common_kind([])
    ('static_fp8', 'other', 'unquantized')
    """
    kinds = {cache_kind(dtype) for dtype in dtypes}
    if "other" in kinds:
        return "other"
    return "static_fp8" if "static_fp8" in kinds else "unquantized"


def quantized_names(dtypes: Iterable[str]) -> str:
    """Return the quantized ones of some cache dtypes by name, for people.

    >>> quantized_names(["nvfp4", "auto", "fp8"])
    'fp8, nvfp4'
    """
    return ", ".join(sorted({dtype for dtype in dtypes if cache_kind(dtype) != "unquantized"}))
