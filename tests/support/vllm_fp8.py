"""Which machines vLLM's CPU build keeps an FP8 cache on: tests of such an engine are skipped on others."""

from __future__ import annotations

import pytest
import torch

HAS_FP8_CACHE = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
"""Source: vLLM 0.32, `v1/attention/backends/cpu_attn.py` (`_get_attn_isa`)."""

needs_fp8_cache = pytest.mark.skipif(
    not HAS_FP8_CACHE,
    reason="vLLM keeps an FP8 cache on CPUs with AVX-512 or AMX alone, not on this one",
)
