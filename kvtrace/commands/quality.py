"""`kvtrace quality`: what answers say of a variant."""

from __future__ import annotations

import typer

from kvtrace.commands.quality_compare import quality_compare

quality = typer.Typer(no_args_is_help=True, help="Answers that a variant loses, and whether that is noise.")


@quality.callback()
def _quality() -> None:
    pass  # keeps `compare` a subcommand while there is one


quality.command("compare")(quality_compare)
