"""Appends lines to a file from a thread of its own, so that a slow disk never holds up the scheduler."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from kvtrace_capture.affinity import leave_the_engines_core
from kvtrace_capture.lines_file import LinesFile

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("kvtrace.capture")

_MAX_QUEUED_LINES: Final = 65_536
_COMMIT_SECONDS: Final = 0.05
"""Between two commits, and so the longest wait of a line: shorter than any row's, and cheap under load."""


class Journal:
    """One append-only file of lines and its commit, readable by their owner alone.

    Raises FileExistsError if the file is there. After that nothing raises: the first fault is logged, and
    lines that could not be written are counted in `lost` and in the commit.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._is_fault_logged = False
        self._file = LinesFile(path)
        self._num_uncommitted = 0
        self._commit_due_at = 0.0
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
        is_open = True
        while is_open:
            try:
                line = self._lines.get(timeout=self._seconds_to_commit())
            except queue.Empty:
                pass
            else:
                is_open = line is not None
                if line is not None:
                    self._write(line)
            if self._is_uncommitted() and (not is_open or time.monotonic() >= self._commit_due_at):
                self._commit()
        self.lost += self._num_uncommitted
        self._file.close()

    def _is_uncommitted(self) -> bool:
        return self._num_uncommitted > 0 or self.lost != self._file.num_lost

    def _seconds_to_commit(self) -> float | None:
        return max(self._commit_due_at - time.monotonic(), 0.0) if self._is_uncommitted() else None

    def _write(self, line: str) -> None:
        try:
            self._file.append(line)
            self._num_uncommitted += 1
        except Exception as error:  # noqa: BLE001 -- the thread must live: lines to come are to be written
            self._lose(str(error))

    def _commit(self) -> None:
        """Commit what is written; where that fails, it is tried again."""
        self._commit_due_at = time.monotonic() + _COMMIT_SECONDS
        try:
            self._file.commit(self.lost)
            self._num_uncommitted = 0
        except Exception as error:  # noqa: BLE001 -- the thread must live: it is tried again
            self._log_once(str(error))

    def _lose(self, reason: str) -> None:
        self._log_once(reason)
        self.lost += 1

    def _log_once(self, reason: str) -> None:
        if not self._is_fault_logged:
            self._is_fault_logged = True
            logger.error("kvtrace: lines of %s are lost: %s", self._path, reason)
