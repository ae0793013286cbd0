"""SGLang: divides in the dtype of K and V, then casts.

Source: SGLang `MHATokenToKVPool.set_kv_buffer`: an in-place division by the scale, then `.to(dtype)`.
The quotient is rounded to bf16 (fp16) before it is rounded to FP8. Beyond the range, `.to` gives NaN in
older versions of torch and the maximum in newer ones; the maximum is taken here. A scale that is kept as a
bf16 tensor would be rounded first.
"""

from __future__ import annotations

from typing import Final

from kvtrace.numerics.engines.engine import Engine

ENGINE: Final = Engine(
    name="sglang",
    product="sglang",
    formats=("e4m3fn", "e5m2", "e4m3fnuz"),
    rounding="nearest",
    rounds_quotient=("bfloat16", "float16"),
    kernel="divide-and-round",
)
