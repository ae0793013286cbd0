"""`kvtrace plan`: which layers to keep native."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver
from kvtrace.errors import InputError


def plan(
    run: Annotated[Path, typer.Argument(help="A run of a trace with queries: the output of kvtrace replay.")],
    candidate: Annotated[
        str | None, typer.Option("--candidate", help="Scales or format; may be left out where there is one.")
    ] = None,
    max_harm: Annotated[
        float | None,
        typer.Option("--max-harm", min=0.0, help="Keep the fewest layers that leave at most this harm."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, help="Keep so many layers. Default: 4, as vLLM's ends.")
    ] = None,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Say which layers to keep native: those that harm most, with bytes, flags, and what harm is left.

    Beside them stand the layers at the ends, which vLLM keeps under some formats, and those that clip most.
    """
    import math

    from kvtrace.extras import require_extra

    if max_harm is not None and keep is not None:
        raise InputError("--max-harm and --keep both choose the number of layers; leave one out")
    if max_harm is not None and not math.isfinite(max_harm):
        raise InputError(f"--max-harm {max_harm}: expected a number of 0 or more")
    require_extra("analysis", "plan", "duckdb")
    from kvtrace.report.harm.plan import plan_layers
    from kvtrace.report.harm.plan_text import plan_text
    from kvtrace.runs.open import open_run

    found = plan_layers(open_run(run), candidate, bound=max_harm, keep=keep)
    if as_json or output_format == "json":
        from pydantic import TypeAdapter

        text = TypeAdapter(type(found)).dump_json(found, indent=2).decode() + "\n"
        deliver(text, output, force=force, for_programs=True)
    else:
        deliver(plan_text(found), output, force=force)
