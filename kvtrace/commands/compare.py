"""`kvtrace compare`: the decision table over candidates of one or several runs."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs of kvtrace replay.")],
    policy: Annotated[Path | None, typer.Option("--policy", help="The limits that decide.")] = None,
    allow_different: Annotated[
        list[str] | None,
        typer.Option("--allow-different", metavar="FIELD", help="Let the runs differ in this, repeatable."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="CANDIDATE",
            help="Compare every row with this one; else each with the simplest that differs in the least.",
        ),
    ] = None,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Compare candidates: BF16, default scales, calibrated, layers excluded, and why one is unsupported.

    Each row says what was held constant, the evidence, paired by request, and what the policy decides. Runs
    that differ in something that should be constant are refused.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "compare", "duckdb", "scipy")
    from kvtrace.gate.compare import compare as compare_runs
    from kvtrace.gate.compare_text import comparison_text
    from kvtrace.gate.policy import load_policy
    from kvtrace.runs.open import open_run

    limits = load_policy(policy) if policy else None
    found = compare_runs(
        [open_run(run) for run in runs], limits, allow_different=allow_different or (), baseline=baseline
    )
    if as_json or output_format == "json":
        deliver(found.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(comparison_text(found), output, force=force)
