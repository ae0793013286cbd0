"""vLLM on ROCm.

Source: vLLM csrc/quantization, AMD path: bf16 and float32 are divided in float32; fp16 is divided and rounded
to fp16 before the cast. E5M2 is not offered. On gfx94x the format is e4m3fnuz and vLLM doubles the scales it
loads; the scale given here is the one in effect. Not compared with an AMD GPU.
"""

from __future__ import annotations

from typing import Final

from kvtrace.numerics.engines.engine import Engine

ENGINE: Final = Engine(
    name="vllm-rocm",
    product="vllm",
    formats=("e4m3fn", "e4m3fnuz"),
    rounding="nearest",
    platforms=("rocm",),
    default_on="rocm",
    rounds_quotient=("float16",),
    kernel="divide-and-round",
)
