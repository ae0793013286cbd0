"""`kvtrace check`: does a run keep a written policy? For people and for CI."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver


def check(
    run: Annotated[Path, typer.Argument(help="A run: the output of kvtrace replay.")],
    policy: Annotated[Path, typer.Option("--policy", help="The limits, a policy.toml.")],
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", help="Which one; else what the engine used."),
    ] = None,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Check a candidate against a policy: exit 0 within, 1 breached, 2 unusable, 3 not enough coverage.

    Every protected segment and every head decides for itself; prints the supported envelope, what was not
    tested and the recalibration triggers that fired.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "check", "duckdb", "scipy")
    from kvtrace.gate.check import check as check_run
    from kvtrace.gate.check_text import check_text
    from kvtrace.gate.policy import load_policy
    from kvtrace.runs.open import open_run

    outcome = check_run(open_run(run), load_policy(policy), candidate)
    if as_json or output_format == "json":
        deliver(outcome.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(check_text(outcome), output, force=force)
    raise typer.Exit(outcome.verdict.exit_code)
