"""One file, replaced whole or not at all. The serving engine loads this module too: standard library only."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO


_LENGTH = 40
"""Characters of a name that the hidden one repeats."""


def replace_file(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write `path`, new or in the place of another, so that a reader finds the old content or the new.

    content: bytes, or text for UTF-8. mode: permissions of a new file, less the umask.
    Raises OSError: it cannot be written; what was there is there still, and nothing else.
    """
    with replacing(path, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file to write, which gets the name `path` when the block ends.

    Where the block raises, or the file cannot be written (OSError), what was there is there still.
    """
    partial = path.with_name(f".{path.name[:_LENGTH]}.partial-{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
