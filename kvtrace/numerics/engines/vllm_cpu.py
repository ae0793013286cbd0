"""vLLM's CPU attention (`cpu_attn_reshape_and_cache`): multiplies by 1/scale, then truncates toward zero.

Compared with the operator of vLLM 0.32 over all bf16 and fp16 patterns: NaN becomes +max, ±inf ±max,
±0 becomes 0x00, and a negative value that truncates to zero keeps its sign (0x80). E4M3 subnormals are not
truncated from x · (1/scale) itself but from its float32 sum with 2^-6, so a value up to 2^-30 below a step
already reaches it.
"""

from __future__ import annotations

from typing import Final

from kvtrace.numerics.engines.engine import Engine

ENGINE: Final = Engine(
    name="vllm-cpu",
    product="vllm",
    formats=("e4m3fn", "e5m2"),
    rounding="truncate",
    exactness="byte for byte equal to the operator of vLLM 0.32",
    multiplies=True,
)
