"""Which trace a path on the command line means: a trace itself, or a folder's latest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvtrace.plain_text import plain_line

if TYPE_CHECKING:
    from pathlib import Path


def trace_at(path: Path) -> Path:
    """Return the trace that is meant; a choice among several is told on stderr.

    Raises NotATraceError: a folder in which no trace can be read.
    """
    from kvtrace.trace.folder import chosen_trace

    trace, told = chosen_trace(path)
    if told is not None:
        typer.echo(f"kvtrace: {plain_line(told)}", err=True)
    return trace
