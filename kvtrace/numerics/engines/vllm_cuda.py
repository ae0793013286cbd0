"""vLLM on CUDA: FlashAttention, FlashInfer and the other callers of `reshape_and_cache_flash`.

Source: vLLM csrc, `scaled_convert`: float32 division, then a saturating cast that rounds half to even.
"""

from __future__ import annotations

from typing import Final

from kvtrace.numerics.engines.engine import Engine

ENGINE: Final = Engine(
    name="vllm-cuda",
    product="vllm",
    formats=("e4m3fn", "e5m2"),
    rounding="nearest",
    platforms=("cuda",),
    default_on="cuda",
    kernel="divide",
)
