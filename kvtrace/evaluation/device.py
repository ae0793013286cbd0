"""Where the round trip runs."""

from __future__ import annotations

import torch

from kvtrace.errors import DeviceError


def choose_device(name: str | None = None) -> torch.device:
    """Return the device called `name`; None: the first CUDA device if there is one, else the CPU.

    Raises DeviceError: no such device here.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"--device {name!r} is no device; expected cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"--device {name} is not supported; expected cpu, cuda or cuda:N")
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise DeviceError(
            f"--device {name}: torch {torch.__version__} sees {found} CUDA devices here; "
            "leave --device out to use the CPU"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
