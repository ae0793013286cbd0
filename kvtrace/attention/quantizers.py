"""What a candidate's cache makes of exact K, V and Q, as the replay of attention asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from kvtrace.attention.replay import Exact, Restored
from kvtrace.numerics.elementwise import dequantize, quantize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.formats.coding import RowCoding
    from kvtrace.trace.queries import AttentionLayer

Quantizer = Callable[[Exact], Restored]

_NUM_PATTERNS: Final = 1 << 16
_MOST_TABLES: Final = 128
"""Of 256 KiB: those of one layer under a few candidates, for one request after another."""


def keep(exact: Exact) -> Restored:
    """Return K and V as they are: a cache in the model's own dtype."""
    return Restored(exact.k, exact.v)


def quantizer_of(applied: AppliedScales, layer: AttentionLayer, dtype: str) -> Quantizer:
    """Return a candidate's round trip of one layer: K and V each in its format, Q as that format takes it.

    dtype: in which K and V reach the cache, bfloat16, float16 or float32. That a backend rounds the output
    to FP8 as well is no part of it.
    """
    of_k, of_v = (_of_tensor(applied, layer, tensor, dtype) for tensor in "kv")
    caches = applied.candidate.cache
    cache = caches.in_layer(layer.index) if caches is not None else None
    if cache is None or cache.query_form == "as computed" or not _is_coded(applied, layer):
        return lambda exact: Restored(of_k(exact.k), of_v(exact.v))
    return lambda exact: Restored(of_k(exact.k), of_v(exact.v), cache.query(exact.q))


def _is_coded(applied: AppliedScales, layer: AttentionLayer) -> bool:
    """Return whether the candidate's cache holds this layer's K in another form than the model's dtype."""
    has_scales = applied.of_heads(layer.index, "k", layer.kv_heads) is not None
    return has_scales or (layer.index, "k") in applied.codings


def _of_tensor(
    applied: AppliedScales, layer: AttentionLayer, tensor: str, dtype: str
) -> Callable[[Tensor], Tensor]:
    scales = applied.of_heads(layer.index, tensor, layer.kv_heads)
    coding = applied.codings.get((layer.index, tensor))
    if coding is not None:
        return lambda x: coded(x, coding, scales, dtype=dtype)
    setup = applied.setup_of(layer.index, tensor)
    if scales is None or setup is None:
        return lambda x: x
    return lambda x: static_fp8(x, scales, engine=setup.engine, fmt=setup.fp8_format, dtype=dtype)


def coded(x: Tensor, coding: RowCoding, scales: Sequence[float] | None, *, dtype: str) -> Tensor:
    """Return what a cache that codes whole vectors gives back, float32.

    x: [head, row, head_dim] float32 holding values of `dtype`. scales: one a head; None: it takes none.
    NaN and inf, which no coding is defined for, are 0 to their vector.
    """
    if not torch.isfinite(x).all():
        x = torch.where(torch.isfinite(x), x, 0)
    of_head = torch.tensor(scales or [1.0] * len(x), dtype=torch.float32)
    if x.device.type != "cpu":
        return coding.round_trip(_as_captured(x, dtype), of_head.to(x.device).reshape(-1, 1, 1))
    vectors = x.contiguous().numpy().reshape(-1, x.shape[2])
    restored = np.empty_like(vectors)
    scale = np.repeat(of_head.numpy(), x.shape[1])
    coding.kernel(x.shape[2], dtype).fill(vectors, scale, restored)
    return torch.from_numpy(restored).reshape(x.shape)


def static_fp8(x: Tensor, scales: Sequence[float], *, engine: str, fmt: str, dtype: str) -> Tensor:
    """Return what an FP8 cache with static scales gives back, float32.

    x: [head, row, head_dim] float32 holding values of `dtype`. scales: one, or one a head.
    On the CPU values of 16 bits are looked up in a table of all of them, which is faster from some thousand
    values on and gives the same bits.
    """
    if dtype != "float32" and x.device.type == "cpu":
        patterns = _as_captured(x, dtype).contiguous().view(torch.int16).numpy().view(np.uint16)
        restored = torch.empty(x.shape)
        tables = {scale: _table(scale, engine, fmt, dtype) for scale in set(scales)}
        for head, of_head in enumerate(patterns):
            scale = scales[head if len(scales) > 1 else 0]
            np.take(tables[scale], of_head, out=restored[head].numpy(), mode="clip")
        return restored
    by_head = torch.tensor(scales, dtype=torch.float32, device=x.device).reshape(-1, 1, 1)
    codes = quantize(_as_captured(x, dtype), by_head, engine=engine, format=fmt)
    return dequantize(codes, by_head, format=fmt)


@lru_cache(_MOST_TABLES)
def _table(scale: float, engine: str, fmt: str, dtype: str) -> NDArray[np.float32]:
    """Return what each 16-bit pattern comes back as, [65536]."""
    every = torch.from_numpy(np.arange(_NUM_PATTERNS, dtype=np.uint16).view(np.int16))
    codes = quantize(every.view(getattr(torch, dtype)), scale, engine=engine, format=fmt)
    table: NDArray[np.float32] = dequantize(codes, scale, format=fmt).numpy()
    return table


def _as_captured(x: Tensor, dtype: str) -> Tensor:
    return x.to(getattr(torch, dtype))
