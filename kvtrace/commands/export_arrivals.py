"""`kvtrace export-arrivals`: when requests came and how long they were, and nothing of what they asked."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, OUTPUT, deliver


def export_arrivals(
    table: Annotated[Path, typer.Argument(help="A table of kvtrace serving.")],
    variant: Annotated[str | None, typer.Option(help="Whose run, where there are several.")] = None,
    run: Annotated[int, typer.Option(min=0, help="Which of its runs, from 0.")] = 0,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Write a run's arrivals as JSON lines: seconds from the first, class, tokens asked and answered."""
    from kvtrace.serving.arrivals import arrival_lines
    from kvtrace.serving.table import read_serving

    lines = "".join(arrival_lines(read_serving(table), variant, run))
    deliver(lines, output, force=force, for_programs=True)
