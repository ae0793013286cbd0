"""Where the profile is made and evaluated."""

from __future__ import annotations

import ctypes
import re

from kvtrace.errors import DeviceError


def choose_device(name: str | None = None) -> str:
    """Return `cpu` or `cuda:N`. name None: the first CUDA device if there is one, else the CPU.

    Raises DeviceError: no such device here.
    """
    if name is None:
        return "cuda:0" if _num_cuda_devices() else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if found is None:
        raise DeviceError(
            f"--device {name!r} is not a device that kvtrace uses; expected cpu, cuda or cuda:N"
        )
    if name == "cpu":
        return name
    index, devices = int(found[1] or 0), _num_cuda_devices()
    if index >= devices:
        raise DeviceError(
            f"--device {name}: there are {devices} CUDA devices here that torch can use; "
            "leave --device out to use the CPU"
        )
    return f"cuda:{index}"


def _num_cuda_devices() -> int:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0  # no driver: nothing to import torch for, which takes over a second
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
