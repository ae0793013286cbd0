"""`kvtrace inspect`: what a trace holds, and whether it is sound."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, TextFormat, chosen_format, deliver


def inspect(
    trace: Annotated[Path, typer.Argument(help="A trace: NAME.kvtrace.", show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Reread and check every tensor.")] = False,
    output_format: FORMAT_TEXT_JSON = TextFormat.text,
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Show what a trace holds: model, engine, effective scales, sampling, coverage, integrity."""
    from kvtrace.trace.reader import open_trace
    from kvtrace.trace.summary import summarize
    from kvtrace.trace.summary_text import summary_text

    summary = summarize(open_trace(trace), verify=verify)
    if chosen_format(output_format, as_json=as_json) is TextFormat.json:
        deliver(summary.model_dump_json(indent=2) + "\n", output, force=force)
    else:
        deliver(summary_text(summary), output, force=force)
