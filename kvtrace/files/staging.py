"""Directories that appear under their name when they are complete, and not before.

Until then they lie beside it under a hidden name, locked by the process that fills them. A killed process
leaves its own behind, unlocked; the next one to write there removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing removed
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_PURPOSES: Final = ("partial", "replaced")
_LENGTH: Final = 40
"""Characters of a name that a hidden one repeats."""
_MIN_AGE_S: Final = 60.0
"""A directory is locked only after it was made: younger ones are let be."""


@contextmanager
def staged(target: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a new directory beside `target` to fill; what is not `put` or renamed when the block ends goes.

    private: for its owner alone, whatever the umask. Raises OSError: it cannot be made.
    """
    remove_leftovers(target)
    directory = Path(tempfile.mkdtemp(prefix=_hidden(target, "partial"), dir=target.parent))
    try:
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            directory.chmod(0o777 & ~umask)
        with locked(directory):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def put(directory: Path, target: Path) -> None:
    """Give a complete directory the name `target`; what is there goes.

    Raises OSError: it cannot be; what was there is there again.
    """
    if not os.path.lexists(target):
        directory.rename(target)
        return
    replaced = target.with_name(_hidden(target, "replaced") + directory.name.rpartition("-")[2])
    target.rename(replaced)
    try:
        directory.rename(target)
    except OSError:
        replaced.rename(target)
        raise
    if replaced.is_dir() and not replaced.is_symlink():
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        replaced.unlink()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock, waiting for it. Where a file system has no locks, it is not held."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            handle = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, handle)
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def remove_leftovers(target: Path) -> None:
    """Remove what killed processes left beside `target`: hidden directories that nobody has locked."""
    prefixes = tuple(_hidden(target, purpose) for purpose in _PURPOSES)
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(prefixes) and path.is_dir() and not path.is_symlink():
                _remove_if_abandoned(path)


def _hidden(target: Path, purpose: str) -> str:
    """Return what hidden names beside `target` begin with; short, as a file system's names are."""
    return f".{target.name[:_LENGTH]}.{purpose}-"


def _remove_if_abandoned(path: Path) -> None:
    if fcntl is None or time.time() - path.stat().st_mtime < _MIN_AGE_S:
        return
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        stack.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
