"""Options that several commands share, so that they read and behave alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvtrace.errors import InputError, OutputExistsError

FORMAT_TEXT_JSON = Annotated[
    Literal["text", "json"], typer.Option("--format", help="For people, or for programs.")
]
JSON = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
OUTPUT = Annotated[Path | None, typer.Option("--output", "-o", help="Write there instead of to stdout.")]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]


def deliver(text: str, output: Path | None, *, force: bool) -> None:
    """Print `text`, or write it to `output`.

    Raises OutputExistsError: the file exists and `force` is False. InputError: it cannot be written.
    """
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OutputExistsError(f"{output}: exists; give another name, or --force to overwrite it") from error
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror}") from error
