"""Options that several commands share, so that they read and behave alike."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvtrace.errors import InputError, OutputExistsError
from kvtrace.files.replaced import replace_file
from kvtrace.plain_text import plain_lines

FORMAT_TEXT_JSON = Annotated[
    Literal["text", "json"], typer.Option("--format", help="For people, or for programs.")
]
JSON = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
OUTPUT = Annotated[Path | None, typer.Option("--output", "-o", help="Write there instead of to stdout.")]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]


def check_absent(output: Path | None, *, force: bool) -> None:
    """Raise OutputExistsError if the output exists, unless `force` is set."""
    if output is not None and not force and os.path.lexists(output):
        raise OutputExistsError(f"{output}: exists; give another name, or --force to overwrite it")


def deliver(content: str | bytes, output: Path | None, *, force: bool, for_programs: bool = False) -> None:
    """Print a text, or write it to `output`, whole or not at all: what is there stays until all is written.

    for_programs: as it is, but on a terminal.
    Raises OutputExistsError: the file exists and `force` is False. InputError: it cannot be written.
    """
    if output is None:
        say(str(content), for_programs=for_programs)
        return
    check_absent(output, force=force)
    try:
        target = output.resolve()  # behind a link: the link stays
        if target.exists() and not target.is_file():
            with target.open("wb") as device:  # a pipe or device cannot be replaced, and is written to
                device.write(content.encode() if isinstance(content, str) else content)
        else:
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666
            replace_file(target, content, mode=mode)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror or error}") from error


def say(text: str, *, for_programs: bool = False) -> None:
    """Print to stdout what a terminal shows as it is. Raises InputError: it is closed, or a full disk."""
    is_harmless = for_programs and not sys.stdout.isatty()
    try:
        typer.echo(text if is_harmless else plain_lines(text), nl=False)
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            # What is left in its buffer would fail once more when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"stdout: cannot be written: {error.strerror or error}") from error
