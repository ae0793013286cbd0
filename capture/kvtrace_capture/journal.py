"""Appends lines to a file from a thread of its own, so that a slow disk never holds up the scheduler."""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Final

from kvtrace_capture.affinity import leave_the_engines_core

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("kvtrace.capture")

_MAX_QUEUED_LINES: Final = 65_536


class Journal:
    """One append-only text file, readable by its owner alone.

    Raises FileExistsError if the file is there. After that nothing raises: the first fault is logged, and
    lines that could not be written are counted in `lost`.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(path, flags, 0o600)
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED_LINES)
        self._thread = threading.Thread(target=self._run, name="kvtrace-journal", daemon=True)
        self._thread.start()

    def append(self, line: str) -> None:
        """Queue one line without waiting."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lose("its queue is full")

    def close(self, timeout: float = 10.0) -> None:
        """Write what is queued and end the thread."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=timeout)
            except queue.Full:
                return
            self._thread.join(timeout)

    def _run(self) -> None:
        leave_the_engines_core()
        while (line := self._lines.get()) is not None:
            try:
                os.write(self._descriptor, (line + "\n").encode())
            except OSError as error:
                self._lose(str(error))
        os.close(self._descriptor)

    def _lose(self, reason: str) -> None:
        if not self.lost:
            logger.error("kvtrace: lines of %s are lost: %s", self._path, reason)
        self.lost += 1
