"""Files of JSON lines, each with the commit beside it that tells a reader how far it is whole."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import google_crc32c

from kvtrace.trace.format import seal
from kvtrace.trace.lines import LinesCommit, lines_commit_file
from kvtrace_capture.private_files import write_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Replace a file of lines, and then its commit. lines: those it had, and more. Raises OSError."""
    content = "".join(line + "\n" for line in lines).encode()
    write_private(path, content)
    _write_commit(path, len(content), len(lines), google_crc32c.value(content), 0)


class LinesFile:
    """Appends lines to a new file, for its owner alone. What `commit` has not covered, no reader believes.

    Raises FileExistsError if the file is there. Every method may raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self.num_lost = 0
        """Lines that could not be written, as the last commit says."""
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(path, flags, 0o600)
        self._num_bytes = self._num_lines = self._crc = 0
        self.commit()

    def append(self, line: str) -> None:
        """Write a line. If it does not fit on the disk, no part of it stays to spoil the next one."""
        content = line.encode() + b"\n"
        try:
            written = 0
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._num_bytes)
            raise
        self._num_bytes += len(content)
        self._num_lines += 1
        self._crc = google_crc32c.extend(self._crc, content)

    def commit(self, num_lost: int = 0) -> None:
        """Make the lines written so far exist for a reader. num_lost: lines that could not be written."""
        _write_commit(self._path, self._num_bytes, self._num_lines, self._crc, num_lost)
        self.num_lost = num_lost

    def close(self) -> None:
        """Close the file, without a commit."""
        os.close(self._descriptor)


def _write_commit(path: Path, num_bytes: int, num_lines: int, crc: int, num_lost: int) -> None:
    commit = LinesCommit(
        num_bytes=num_bytes, num_lines=num_lines, content_crc32c=f"{crc:08x}", num_lost=num_lost
    )
    write_private(lines_commit_file(path), seal(commit))
