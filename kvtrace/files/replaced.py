"""One file, replaced whole or not at all. Only `os` is imported: the serving engine loads this module too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write `path`, new or in the place of another, so that a reader finds the old content or the new.

    content: bytes, or text for UTF-8. mode: permissions of a new file, less the umask.
    Raises OSError: it cannot be written; a hidden file of the process may be left beside it.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    partial.replace(path)
