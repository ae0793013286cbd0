"""Regular files alone, opened without waiting and read up to a limit.

A file from elsewhere may be a pipe that nobody writes to, a device without an end, or larger than the memory.
Only the standard library is imported: the serving engine loads this module too.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from pathlib import Path

RECORD_BYTES: Final = 64_000_000
"""Limit of a file that holds one record: `commit.json` of a month's capture has a tenth of it."""

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Return a regular file, open for reading.

    follow: whether `path` may be a link to one. Raises OSError: it cannot be opened, or is something else;
    its `strerror` says what.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _irregular(path, path.stat().st_mode) from error
        if error.errno == errno.ELOOP:
            why = "Too many levels of symbolic links" if follow else "is a link, expected the file itself"
            raise OSError(errno.ELOOP, why, str(path)) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode)
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int = RECORD_BYTES) -> bytes:
    """Return a regular file's content. Raises OSError as `open_regular` does, or where it is larger."""
    with open_regular(path) as file:
        # As much as is there: Python takes the memory for what it is asked to read before it reads.
        content = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"is larger than {most:,} bytes, as no such file is", str(path))
    return content


def read_start(path: Path, most: int) -> bytes:
    """Return the first bytes of a regular file, all of it where it has no more. Raises OSError likewise."""
    with open_regular(path) as file:
        return file.read(min(os.fstat(file.fileno()).st_size, most))


def _irregular(path: Path, mode: int) -> OSError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    return OSError(errno.EINVAL, f"is {kind}, expected a regular file", str(path))
