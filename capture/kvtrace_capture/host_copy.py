"""Copies tensors to the host without waiting for the device they are on, and without making it wait."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

NameT = TypeVar("NameT")


class HostCopy(Generic[NameT]):
    """A copy that has been started. Tensors that are on the host already are taken as they are.

    On CUDA the copies go into pinned memory on a stream of their own, which waits for the engine's stream;
    the engine's never waits for it. Neither is synchronized here: an event tells when the copies are there.
    """

    def __init__(self, tensors: Mapping[NameT, torch.Tensor]) -> None:
        self._sources = tensors
        """Held until the copies are there: freed memory would be given to the engine's next kernels."""
        self._event: Any = None
        self.tensors: dict[NameT, torch.Tensor]
        """On the host; their content is there once `is_done()`."""
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        if device is None:
            self.tensors = dict(tensors)
            return
        cuda: Any = torch.cuda  # its streams and events carry no types
        stream = _copy_stream(device)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            self.tensors = {name: _pinned(tensor) for name, tensor in tensors.items()}
            self._event = cuda.Event()
            self._event.record(stream)

    def is_done(self) -> bool:
        """Return whether the copies have arrived."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait until the copies have arrived."""
        if self._event is not None:
            self._event.synchronize()


@cache
def _copy_stream(device: torch.device) -> Any:
    cuda: Any = torch.cuda
    return cuda.Stream(device)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
