"""Files and directories for their owner alone, each written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.files.replaced import replace_file

if TYPE_CHECKING:
    from pathlib import Path


def make_private_directory(path: Path, below: Path | None = None) -> None:
    """Create a directory and what it lacks above it; existing ones stay as they are.

    below: create nothing at or above it. Raises FileNotFoundError if `below` is not there.
    """
    for directory in (*reversed(path.parents), path):
        if below is None or (directory != below and directory.is_relative_to(below)):
            directory.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all (atomic replacement)."""
    replace_file(path, content, mode=0o600)
