"""vLLM's Triton cache write.

Source: vLLM `triton_reshape_and_cache_flash`: x / scale in float32, then the cast. Triton's division may be
2 ulp off (it is not the IEEE one), which changes a code only where x / scale lies that close to a rounding
boundary. The IEEE division stands for it here. The write stores the platform's own format, whatever name was
asked for (0.32).
"""

from __future__ import annotations

from typing import Final

from kvtrace.numerics.engines.engine import Engine

ENGINE: Final = Engine(
    name="vllm-triton",
    product="vllm",
    formats=("e4m3fn", "e5m2", "e4m3fnuz"),
    rounding="nearest",
    platforms=("cuda", "rocm"),
    writes_native_format=True,
    kernel="divide",
)
