"""On which platform a captured engine ran, by what its trace says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.trace.format import EngineRecord

_DEVICE_TYPES: Final = {name: name for name in ("cpu", "xpu", "tpu", "hpu", "rocm")} | {"hip": "rocm"}
_BRANDS: Final = {"nvidia": "cuda", "geforce": "cuda", "quadro": "cuda", "tesla": "cuda", "titan": "cuda"} | {
    "amd": "rocm",
    "radeon": "rocm",
    "instinct": "rocm",
}
"""Words in the product names that drivers give; NVIDIA's older ones leave out "NVIDIA"."""


def platform_of(engine: EngineRecord, backends: Iterable[str]) -> str | None:
    """Return cuda, rocm, cpu, xpu, tpu, hpu or another name that vLLM gave; None where it cannot be told.

    backends: of the trace's layers. Before trace format 1.2 the platform was not recorded: there the name of
    the product tells it, or the device type. ROCm builds of torch call theirs `cuda` too, so for them the
    backends and torch's version do.
    """
    if engine.platform is not None:
        return engine.platform
    device = engine.device.lower()
    device_type = device.split(":")[0]
    if device_type in _DEVICE_TYPES:
        return _DEVICE_TYPES[device_type]
    for word in re.findall(r"[a-z]+", device):
        if word in _BRANDS:
            return _BRANDS[word]
    if "+rocm" in engine.torch_version or any(backend.startswith("ROCM_") for backend in backends):
        return "rocm"
    return "cuda" if device_type == "cuda" else None
