"""`kvtrace quality compare`: every variant against BF16 on the same prompts."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver
from kvtrace.commands.trace_inputs import trace_at
from kvtrace.errors import InputError


def quality_compare(
    tables: Annotated[list[Path], typer.Argument(help="Tables of kvtrace outcomes.")],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="A policy.toml with a table called quality.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Without a policy: loss of pass rate accepted, such as 0.01.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="Without a policy: pass rate to reach, such as 0.9.")
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Without a policy: a protected segment, repeatable."),
    ] = None,
    baseline: Annotated[str, typer.Option(help="The variant to compare with.")] = "bf16-a",
    noise: Annotated[str, typer.Option(help="The variant that is the baseline's second run.")] = "bf16-b",
    looks: Annotated[
        Path | None, typer.Option("--looks", help="Counts the looks that a policy plans; made if absent.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Join the answers with the requests of this trace.")
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option("--calibration", help="Calibrated scales whose prompts must not be evaluated."),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", help="Log-probabilities: the scores.parquet of kvtrace quality run."),
    ] = None,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Compare pass and fail, paired: exit 0 within, 1 breached, 2 unusable, 3 too few or cannot tell."""
    from kvtrace.extras import require_extra

    require_extra("analysis", "quality", "scipy")
    from kvtrace.outcomes.table import read_outcomes
    from kvtrace.quality.compare import compare_quality
    from kvtrace.quality.policy import load_quality_policy, quality_limits
    from kvtrace.quality.text import quality_text
    from kvtrace.trace.reader import open_trace

    if policy is not None and (margin is not None or floor is not None or protect):
        raise InputError("--policy has the limits: leave out --margin, --floor and --protect")
    if policy is None and (margin is None or floor is None):
        raise InputError("limits are missing: give --policy policy.toml, or --margin and --floor")
    limits = (
        load_quality_policy(policy)
        if policy
        else quality_limits(margin=margin, floor=floor, protected=tuple(protect or ()))
    )
    logprobs = None
    if scores is not None:
        require_extra("analysis", "quality", "pyarrow")
        from kvtrace.quality.logprobs import compare_logprobs
        from kvtrace.quality.scores import read_scores

        logprobs = compare_logprobs(read_scores(scores), noise, limits.confidence)
    found = compare_quality(
        [read_outcomes(table) for table in tables],
        limits,
        baseline=baseline,
        noise=noise,
        looks_file=looks,
        trace=open_trace(trace_at(trace)) if trace is not None else None,
        calibrations=calibration or (),
        logprobs=logprobs,
    )
    if as_json or output_format == "json":
        deliver(found.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(quality_text(found), output, force=force)
    raise typer.Exit(found.verdict.exit_code)
