"""What vLLM's cache write computes on a platform: its numerics, and the FP8 format of its cache."""

from __future__ import annotations

import re
from typing import Final

from kvtrace.errors import InputError
from kvtrace.numerics.backends import find_backend
from kvtrace.numerics.engines import ENGINES

_GFX94: Final = re.compile(r"MI3(00|08|25)")
_NOT_GFX94: Final = re.compile(r"MI(2\d\d|3[5-9]\d)|Radeon", re.IGNORECASE)


def numerics_on(platform: str | None, backend: str) -> str | None:
    """Return the name of the numerics in which vLLM's backend writes FP8 there; None: kvtrace has none.

    >>> numerics_on("cuda", "FLASH_ATTN"), numerics_on("rocm", "TRITON_ATTN"), numerics_on("xpu", "IPEX")
    ('vllm-cuda', 'vllm-triton', None)
    """
    possible = [engine for engine in ENGINES.values() if platform in engine.platforms]
    try:
        names = find_backend(backend).engines
    except InputError:
        return next((engine.name for engine in possible if engine.default_on == platform), None)
    return next((engine.name for engine in possible if engine.name in names), None)


def fp8_format_on(platform: str | None, device: str, compute_capability: str | None) -> str | None:
    """Return the platform's own E4M3 format; None where this does not tell it.

    device: the product's name. On AMD's gfx94x (MI300A, MI300X, MI308X, MI325X; compute capability 9.4) it is
    e4m3fnuz.
    Source: vLLM 0.32, `platforms/rocm.py` (`is_fp8_fnuz`, `_ROCM_DEVICE_ID_NAME_MAP`).

    >>> fp8_format_on("cuda", "NVIDIA H200", "9.0"), fp8_format_on("rocm", "AMD Instinct MI300X", None)
    ('e4m3fn', 'e4m3fnuz')
    """
    if platform is None:
        return None
    if platform != "rocm":
        return "e4m3fn"
    if compute_capability is not None:
        return "e4m3fnuz" if compute_capability == "9.4" else "e4m3fn"
    if _GFX94.search(device):
        return "e4m3fnuz"
    return "e4m3fn" if _NOT_GFX94.search(device) else None
