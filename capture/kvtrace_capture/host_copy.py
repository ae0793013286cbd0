"""Copies tensors to the host without waiting for the device they are on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

NameT = TypeVar("NameT")


class HostCopy(Generic[NameT]):
    """A copy that has been started. Tensors that are on the host already are taken as they are.

    On CUDA the copies go into pinned memory in the order of the current stream, and an event tells when they
    are there; the stream is never synchronized here.
    """

    def __init__(self, tensors: Mapping[NameT, torch.Tensor]) -> None:
        self.tensors = {name: _started(tensor) for name, tensor in tensors.items()}
        """On the host; their content is there once `is_done()`."""
        self._sources = tensors
        self._event: Any = None
        if any(tensor.is_cuda for tensor in tensors.values()):
            cuda: Any = torch.cuda  # its events carry no types
            self._event = cuda.Event()
            self._event.record()

    def is_done(self) -> bool:
        """Return whether the copies have arrived."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait until the copies have arrived."""
        if self._event is not None:
            self._event.synchronize()


def _started(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor.cpu()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
