"""Which versions of vLLM were tried (`make test-vllm-versions`), and what differs between them.

The names that are hooked are the same in all of them. On a version that was not tried `self_check` decides.
"""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TRIED: Final[dict[str, tuple[str, ...]]] = {"cpu": ("0.28", "0.29", "0.30", "0.31", "0.32")}
"""By the engine's device type, the releases whose captures were held against Hugging Face forwards."""


def is_tried(version: str, device_type: str) -> bool:
    """Return whether captures of this release were held against a reference on this kind of device.

    >>> is_tried("0.32.1", "cpu"), is_tried("0.32.1", "cuda"), is_tried("0.27.0", "cpu")
    (True, False, False)
    """
    release = re.match(r"\d+\.\d+", version)
    return release is not None and release[0] in TRIED.get(device_type, ())


def close_at_exit(owner: object, close: Callable[[], Any]) -> Callable[[], Any]:
    """Return what calls `close` once: when it is called, `owner` is gone, or the interpreter ends.

    vLLM before 0.31 does not shut an engine down that runs in the caller's own process
    (VLLM_ENABLE_V1_MULTIPROCESSING=0) when the interpreter ends, and the last rows would be lost. `close`
    must not hold `owner`.
    """
    return weakref.finalize(owner, close)
