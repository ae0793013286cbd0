"""`kvtrace quality`: what answers say of a variant."""

from __future__ import annotations

import typer

from kvtrace.commands.quality_compare import quality_compare
from kvtrace.commands.quality_run import quality_run
from kvtrace.commands.quality_tie import quality_tie

quality = typer.Typer(no_args_is_help=True, help="Answers that a variant loses, and whether that is noise.")
quality.command("run")(quality_run)
quality.command("compare")(quality_compare)
quality.command("tie")(quality_tie)
