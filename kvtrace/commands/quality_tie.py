"""`kvtrace quality tie`: which heads clip on the requests whose answers were lost."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver
from kvtrace.commands.trace_inputs import trace_at


def quality_tie(
    tables: Annotated[list[Path], typer.Argument(help="Tables of kvtrace outcomes, made with --key.")],
    trace: Annotated[Path, typer.Option("--trace", help="The trace that has the answers' requests.")],
    run: Annotated[Path, typer.Option("--run", help="What kvtrace replay made of that trace.")],
    candidate: Annotated[
        str | None, typer.Option(help="The scales that the variant served with, as the run names them.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="The variant whose losses are meant.")] = None,
    baseline: Annotated[str, typer.Option(help="The variant it is compared with.")] = "bf16-a",
    noise: Annotated[str, typer.Option(help="The baseline's second run.")] = "bf16-b",
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Relate lost answers to clipping on their requests: what goes with them, or that nothing does."""
    from kvtrace.extras import require_extra

    require_extra("analysis", "quality", "duckdb")
    from kvtrace.outcomes.table import read_outcomes
    from kvtrace.quality.tie import tie_quality
    from kvtrace.quality.tie_text import tie_text
    from kvtrace.runs.open import open_run
    from kvtrace.trace.reader import open_trace

    found = tie_quality(
        [read_outcomes(table) for table in tables],
        open_trace(trace_at(trace)),
        open_run(run),
        candidate=candidate,
        variant=variant,
        baseline=baseline,
        noise=noise,
    )
    if as_json or output_format == "json":
        deliver(found.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(tie_text(found), output, force=force)
