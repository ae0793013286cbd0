"""Notes of a replay on stderr, one a line."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from kvtrace.plain_text import plain_line

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def notes_on_stderr(level: int) -> Iterator[None]:
    """Print what kvtrace logs within the block, from `level` on, once the block ends.

    Not before, as a progress bar may be there; not after an error, which is then the one line to read.
    """
    kept, logger = _Kept(level), logging.getLogger("kvtrace")
    before = logger.level
    logger.addHandler(kept)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(kept)
    for line in kept.lines:
        typer.echo(plain_line(line), err=True)


class _Kept(logging.Handler):
    """Keeps messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
