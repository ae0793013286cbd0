"""vLLM on ROCm.

Source: vLLM csrc/quantization, AMD path: bf16 and float32 are divided in float32; fp16 is divided and rounded
to fp16 before the cast. E5M2 is not offered. On gfx94x the format is e4m3fnuz and vLLM doubles the scales it
loads; the scale given here is the one in effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from kvtrace.numerics.casts import nearest_codes
from kvtrace.numerics.engines.engine import Engine, divide_in_float32

if TYPE_CHECKING:
    from torch import Tensor


def _scale_down(x: Tensor, scale: Tensor) -> Tensor:
    y = divide_in_float32(x, scale)
    return y.half().float() if x.dtype == torch.float16 else y


ENGINE: Final = Engine(
    name="vllm-rocm",
    formats=("e4m3fn", "e4m3fnuz"),
    rounding="nearest",
    scale_down=_scale_down,
    to_codes=nearest_codes,
    divides_in_float32=False,
    exactness="by the rules of its source; not compared with an AMD GPU",
)
