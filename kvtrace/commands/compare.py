"""`kvtrace compare`: the decision table over candidates of one or several runs."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from kvtrace.commands.candidate_options import ReplayOptions, request_for, with_replay_options
from kvtrace.commands.notes import notes_on_stderr
from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver
from kvtrace.commands.replay_into import replay_into
from kvtrace.commands.trace_inputs import trace_at
from kvtrace.errors import InputError


@with_replay_options("policy")
def compare(
    inputs: Annotated[
        list[Path], typer.Argument(metavar="RUN|TRACE", help="Runs of kvtrace replay, or traces.")
    ],
    options: ReplayOptions,
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
    that differ in something that should be constant are refused. Traces are replayed first, together.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "compare", "duckdb", "scipy")
    from kvtrace.gate.compare import compare as compare_runs
    from kvtrace.gate.compare_text import comparison_text
    from kvtrace.gate.policy import load_policy
    from kvtrace.runs.open import open_run

    limits = load_policy(policy) if policy else None
    inputs = [trace_at(path) for path in inputs]
    of_traces = _are_traces(inputs, options)
    with TemporaryDirectory(prefix="kvtrace-") if of_traces else nullcontext("") as scratch:
        runs = inputs
        if of_traces:
            require_extra("analysis", "compare", "torch", "safetensors")
            with notes_on_stderr(logging.WARNING):
                runs = [replay_into(request_for(inputs, options), None, Path(scratch) / "run")]
        found = compare_runs(
            [open_run(run) for run in runs], limits, allow_different=allow_different or (), baseline=baseline
        )
    if as_json or output_format == "json":
        deliver(found.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(comparison_text(found), output, force=force)


def _are_traces(inputs: list[Path], options: ReplayOptions) -> bool:
    """Return whether all inputs are traces; False where none is.

    Raises InputError: both kinds, or options for traces with runs.
    """
    from kvtrace.trace.format import TRACE_FILE

    traces = [path for path in inputs if (path / TRACE_FILE).is_file()]
    if traces and len(traces) < len(inputs):
        raise InputError(f"{traces[0]}: a trace, given with runs; replay it first, or give traces alone")
    if not traces and options != ReplayOptions():
        raise InputError(
            f"{inputs[0]}: the candidates of a run are fixed; give its trace to try --scales, --cache-dtype "
            "and what else a replay takes"
        )
    return bool(traces)
