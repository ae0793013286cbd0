"""`kvtrace report`: a trace or a run in, the answer out."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtrace.commands.candidate_options import ReplayOptions, request_for, with_replay_options
from kvtrace.commands.notes import notes_on_stderr
from kvtrace.commands.options import FORCE, JSON, OUTPUT, check_absent, deliver
from kvtrace.commands.replay_into import MOST_WITH_INTERVALS, replay_into
from kvtrace.commands.trace_inputs import trace_at
from kvtrace.errors import InputError, NotATraceError

if TYPE_CHECKING:
    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run


@with_replay_options()
def report(
    inputs: Annotated[list[Path], typer.Argument(metavar="TRACE|RUN", help="Traces, or one run.")],
    options: ReplayOptions,
    intervals: Annotated[
        bool | None,
        typer.Option(
            "--intervals/--no-intervals",
            help="For the JSON: sum by group of requests too, as kvtrace replay --intervals does. "
            f"On for up to {MOST_WITH_INTERVALS} candidates if the tensors are there.",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Heads listed per candidate, K and V.")] = 5,
    output_format: Annotated[
        Literal["text", "json", "md", "html"],
        typer.Option("--format", help="For people, for programs, for an incident document, a page."),
    ] = "text",
    as_json: JSON = False,
    section: Annotated[
        Literal["answer", "range", "heads", "formats", "evidence", "not-measured"] | None,
        typer.Option("--section", help="Of the text: this section alone.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Bytes for the cache, such as 40GiB: tokens beside the error."),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="The same as --section answer.")] = False,
    output: OUTPUT = None,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", help="Write the main charts there too, as PNG and SVG."),
    ] = None,
    force: FORCE = False,
) -> None:
    """Say which heads leave the FP8 range under which scales, K or V, at which positions, in which workload.

    A trace is replayed first: with the engine's effective scales, 1.0 and each artifact. A run, the output of
    kvtrace replay, is only reported.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "report", "duckdb", "pyarrow")
    if as_json and output_format not in ("text", "json"):
        raise InputError(f"--json and --format {output_format} contradict each other; give one of them")
    chosen = "json" if as_json else output_format
    part = "answer" if brief else section
    if part is not None and chosen != "text":
        raise InputError(
            f"--section and --brief are of the text, and --format {chosen} was given; leave one out"
        )
    if chosen == "html" or plots is not None:
        require_extra("report", "report --format html or --plots", "altair", "jinja2", "vl_convert")
    from kvtrace.capacity.budget import read_budget
    from kvtrace.report.build import build_report
    from kvtrace.runs.open import open_run

    inputs = [trace_at(path) for path in inputs]
    num_bytes = read_budget(budget).num_bytes if budget is not None else None
    for path in (output, plots):
        check_absent(path, force=force)
    fixed = {
        "--scales": options.scales,
        "--against": options.against,
        "--manifest": options.manifest,
        "--policy": options.policy,
        "--cache-dtype": options.cache_dtype,
        "--sweep": options.sweep,
        "--intervals": intervals,
    }
    is_run = _is_run(inputs, [option for option, given in fixed.items() if given])
    with nullcontext("") if is_run else TemporaryDirectory(prefix="kvtrace-") as scratch:
        if is_run:
            run = inputs[0]
        else:
            require_extra("analysis", "report", "torch", "safetensors")
            with notes_on_stderr(logging.WARNING):
                request = request_for(inputs, options)
                run = replay_into(request, intervals, Path(scratch) / "run")
        opened = open_run(run)
        built = build_report(opened, top=top, run_kept=is_run, budget=num_bytes)
        text = _rendered(built, opened, chosen, part)
        if plots is not None:
            from kvtrace.report.plots import write_plots

            write_plots(built, opened, plots)
    deliver(text, output, force=force, for_programs=chosen != "text")


def _rendered(built: Report, run: Run, chosen: str, section: str | None) -> str:
    if chosen == "json":
        from kvtrace.report.json import report_json

        return report_json(built)
    if chosen == "html":
        from kvtrace.report.html.render import report_html

        return report_html(built, run)
    if chosen == "md":
        from kvtrace.report.markdown import report_markdown

        return report_markdown(built)
    from kvtrace.report.terminal.encoding import encodable
    from kvtrace.report.terminal.text import report_text

    return encodable(report_text(built, section=section), sys.stdout.encoding or "utf-8")


def _is_run(inputs: list[Path], for_traces: list[str]) -> bool:
    """Return whether the input is one run; False where all are traces.

    for_traces: options given that a run cannot take any more. Raises InputError: a run among others.
    NotATraceError: an input is neither.
    """
    from kvtrace.runs.open import missing_run
    from kvtrace.runs.schema import RUN_FILE
    from kvtrace.trace.format import TRACE_FILE

    for path in inputs:
        if not (path / RUN_FILE).is_file() and not (path / TRACE_FILE).is_file():
            expected = "a trace (NAME.kvtrace, as captured) or a run (the output of kvtrace replay)"
            lacking = f"holds neither {TRACE_FILE} nor {RUN_FILE}"
            raise NotATraceError(missing_run(path, expected, lacking))
    runs = [path for path in inputs if (path / RUN_FILE).is_file()]
    if not runs:
        return False
    if len(inputs) > 1:
        raise InputError(f"{runs[0]}: a run, given with others; expected one run, or any number of traces")
    if for_traces:
        raise InputError(
            f"{runs[0]}: a run, whose record and candidates are fixed; give its trace to try "
            f"{', '.join(for_traces)}"
        )
    return True
