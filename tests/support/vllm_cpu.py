"""What vLLM does on this machine's CPU: whether it keeps an FP8 cache, and how near to float32 it comes."""

from __future__ import annotations

from typing import Final

import pytest
import torch

HAS_WIDE_VECTORS: Final = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
"""AVX-512 or AMX. Source: vLLM 0.32, `v1/attention/backends/cpu_attn.py` (`_get_attn_isa`)."""

MAX_DISTANCE_RATIO: Final = 1.1 if HAS_WIDE_VECTORS else 1.5
"""How much further than a bfloat16 forward the engine's K and V may lie from a float32 one.

On a CPU with AVX2 alone the engine itself is less exact, in layer 0 too, before any attention: up to 1.34 was
measured there, 1.004 with AVX-512.
"""

needs_fp8_cache = pytest.mark.skipif(
    not HAS_WIDE_VECTORS, reason="vLLM keeps an FP8 cache on CPUs with AVX-512 or AMX alone, not on this one"
)
