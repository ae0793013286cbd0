"""Folders for faults: one in memory, one on a disk of its own size."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARED_MEMORY: Final = Path("/dev/shm")


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder in memory if there is one: a case makes and removes hundreds of files."""
    in_memory = str(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="kvtrace-faults-", dir=in_memory) as folder:
        Path(folder).chmod(0o711)  # some faults are another user's
        yield Path(folder)


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """Yield a file system of so many bytes. Raises PermissionError where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes},mode=0700", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise PermissionError(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
