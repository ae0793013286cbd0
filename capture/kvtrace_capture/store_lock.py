"""The lock by which a reader knows that a store is still written; the system drops it with the process."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows: a live trace then looks like one whose engine died
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path


class StoreLock:
    """Held from its making until `release`, where the file system has locks."""

    def __init__(self, store: Path) -> None:
        self._handle: int | None = None
        with contextlib.suppress(OSError):
            self._handle = os.open(store, os.O_RDONLY)
            if fcntl is not None:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let readers know that nothing more comes."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
