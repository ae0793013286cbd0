"""A secret key in a file: read where nobody else could have put it, made once where there is none.

Only the standard library is imported: the serving engine loads this module too.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

from kvtrace.files.regular import open_regular

if TYPE_CHECKING:
    from pathlib import Path

_KEY_BYTES: Final = 32
_MAX_KEY_BYTES: Final = 4096
MAY_BE_READ: Final = stat.S_IWGRP | stat.S_IWOTH
"""Modes that no key may have where others may read it, as a mounted secret of a cluster."""
IS_PRIVATE: Final = stat.S_IRWXG | stat.S_IRWXO


def load_or_make_key(path: Path, *, refused: int = MAY_BE_READ) -> bytes:
    """Return the key in `path`; a missing file is made with 32 random bytes, readable by its owner alone.

    refused: modes that it must not have. Processes that start together agree on one key: it is linked into
    place whole, and the first wins.
    Raises OSError: it cannot be read or made, is a link or no regular file, or somebody else than its user or
    root could have written it. ValueError: it holds fewer than 16 bytes.
    """
    if not os.path.lexists(path):
        _make_key(path)
    with open_regular(path, follow=False) as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & refused:
            raise PermissionError(
                errno.EPERM,
                f"belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}, expected the "
                "user who runs this, or root, and nobody else in it (chmod 600)",
                str(path),
            )
        key = file.read(_MAX_KEY_BYTES)
    if len(key) < _KEY_BYTES // 2:
        raise ValueError(f"{path}: the key has {len(key)} bytes, expected {_KEY_BYTES // 2} or more")
    return key


def _make_key(path: Path) -> None:
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        path.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process of this start was first
    finally:
        fresh.unlink()
