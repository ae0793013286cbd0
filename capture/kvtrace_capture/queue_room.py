"""The bytes that rows may take while they wait for a rank's writers. Nothing here imports vllm or torch."""

from __future__ import annotations

import threading


class QueueRoom:
    """Room for so many bytes, counted over all writers that share it, from any thread."""

    def __init__(self, num_bytes: int = 256 << 20) -> None:
        self.num_bytes = num_bytes
        self._taken = 0
        self._lock = threading.Lock()

    def has(self, num_bytes: int) -> bool:
        """Return whether so many bytes would fit now."""
        with self._lock:
            return self._taken + num_bytes <= self.num_bytes

    def take(self, num_bytes: int) -> bool:
        """Take room for so many bytes. False: they do not fit, and nothing was taken."""
        with self._lock:
            if self._taken + num_bytes > self.num_bytes:
                return False
            self._taken += num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._taken -= num_bytes
