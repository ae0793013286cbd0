"""`kvtrace report`: a trace or a run in, the answer out; two in, what changed between them."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
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
    from collections.abc import Sequence

    from kvtrace.report.before_after.model import BeforeAfter
    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run


@with_replay_options()
def report(
    inputs: Annotated[list[Path], typer.Argument(metavar="TRACE|RUN", help="One, or two: before and after.")],
    options: ReplayOptions,
    intervals: Annotated[
        bool | None,
        typer.Option(
            "--intervals/--no-intervals",
            help="For the JSON: sum by group of requests too, as kvtrace replay --intervals does. "
            f"On for up to {MOST_WITH_INTERVALS} candidates if the tensors are there.",
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate",
            help="Show this one head by head, repeatable; else all of a few, of many the best.",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Heads listed per candidate, K and V.")] = 5,
    output_format: Annotated[
        Literal["text", "json", "md", "html"],
        typer.Option("--format", help="For people, for programs, for an incident document, a page."),
    ] = "text",
    as_json: JSON = False,
    section: Annotated[
        Literal["answer", "harm", "range", "heads", "before-and-after", "formats", "evidence", "not-measured"]
        | None,
        typer.Option("--section", help="Of the text: this section alone.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Bytes for the cache, such as 40GiB: tokens beside the error."),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="The same as --section answer.")] = False,
    output: OUTPUT = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write the page there too, as --format html gives it.")
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", help="Write the main charts there too, as PNG and SVG."),
    ] = None,
    force: FORCE = False,
) -> None:
    """Say which heads leave the FP8 range under which scales, K or V, at which positions, in which workload.

    A trace is replayed first: with the engine's effective scales, 1.0 and each artifact. A run, the output of
    kvtrace replay, is only reported. Of two deployments it says what changed from the first to the second.
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
    if chosen == "html" and page is not None:
        raise InputError("--page and --format html both give the page; leave one out")
    if chosen == "html" or page is not None or plots is not None:
        require_extra("report", "report --format html, --page or --plots", "jinja2", "vl_convert")
    from kvtrace.capacity.budget import read_budget

    inputs = [trace_at(path) for path in inputs]
    num_bytes = read_budget(budget).num_bytes if budget is not None else None
    for path in (output, page, plots):
        check_absent(path, force=force)
    if len(inputs) > 2:
        raise InputError(
            f"{len(inputs)} inputs: expected one, or two: before and after. Several traces of one deployment "
            "become one run first: kvtrace replay TRACE … -o RUN"
        )
    if len(inputs) == 2 and (plots is not None or candidate or budget is not None):
        raise InputError(
            "--plots, --candidate and --budget are of a report on one deployment; leave them out"
        )
    fixed = {
        "--scales": options.scales,
        "--against": options.against,
        "--manifest": options.manifest,
        "--policy": options.policy,
        "--cache-dtype": options.cache_dtype,
        "--sweep": options.sweep,
        "--checkpoint": options.checkpoint,
        "--attention": options.attention is not None or None,
        "--intervals": intervals,
    }
    are_runs = _are_runs(inputs, [option for option, given in fixed.items() if given])
    if not all(are_runs):
        require_extra("analysis", "report", "torch", "safetensors")
    formats = (chosen,) if page is None else (chosen, "html")
    with ExitStack() as scratches:
        opened = _opened(inputs, are_runs, options, intervals, scratches)
        if len(opened) == 2:
            texts = _of_two(opened, are_runs, formats, part)
        else:
            texts = _of_one(opened[0], are_runs[0], formats, part, top, candidate or (), plots, num_bytes)
    if page is not None:
        deliver(texts[1], page, force=force)
    deliver(texts[0], output, force=force, for_programs=chosen != "text")


def _opened(
    inputs: Sequence[Path],
    are_runs: Sequence[bool],
    options: ReplayOptions,
    intervals: bool | None,
    scratches: ExitStack,
) -> list[Run]:
    """Return each input as a run; a trace is replayed into a directory that goes with `scratches`."""
    from kvtrace.runs.open import open_run

    requests = {}
    with notes_on_stderr(logging.WARNING):
        for path, is_run in zip(inputs, are_runs, strict=True):
            if not is_run and path not in requests:
                requests[path] = request_for([path], options)
        if len(inputs) == 2 and not any(are_runs):
            from kvtrace.trace.reader import open_trace
            from kvtrace.trace.several import refuse_same_capture

            refuse_same_capture([open_trace(path) for path in inputs])
        runs = []
        for path, is_run in zip(inputs, are_runs, strict=True):
            if is_run:
                runs.append(open_run(path))
                continue
            scratch = scratches.enter_context(TemporaryDirectory(prefix="kvtrace-"))
            runs.append(open_run(replay_into(requests[path], intervals, Path(scratch) / "run")))
    return runs


def _of_one(
    run: Run,
    is_kept: bool,
    formats: Sequence[str],
    section: str | None,
    top: int,
    candidates: Sequence[str],
    plots: Path | None,
    budget: int | None,
) -> list[str]:
    """Return the report in each of the formats."""
    from kvtrace.report.build import build_report
    from kvtrace.report.terminal.text import SECTIONS

    _check_section(section, SECTIONS)
    built = build_report(run, top=top, run_kept=is_kept, candidates=candidates, budget=budget)
    if plots is not None:
        from kvtrace.report.plots import write_plots

        write_plots(built, run, plots)
    return [_one_as(chosen, built, run, section) for chosen in formats]


def _one_as(chosen: str, built: Report, run: Run, section: str | None) -> str:
    if chosen == "json":
        from kvtrace.report.json import report_json

        return report_json(built)
    if chosen == "html":
        from kvtrace.report.html.render import report_html

        return report_html(built, run)
    if chosen == "md":
        from kvtrace.report.markdown import report_markdown

        return report_markdown(built)
    from kvtrace.report.terminal.text import report_text

    return _for_terminal(report_text(built, section=section))


def _of_two(
    runs: Sequence[Run], are_kept: Sequence[bool], formats: Sequence[str], section: str | None
) -> list[str]:
    """Return what changed in each of the formats."""
    from kvtrace.report.before_after.build import build_before_after
    from kvtrace.report.before_after.text import SECTIONS

    _check_section(section, SECTIONS)
    before, after = runs
    built = build_before_after(before, after, kept=(are_kept[0], are_kept[1]))
    return [_two_as(chosen, built, section) for chosen in formats]


def _two_as(chosen: str, built: BeforeAfter, section: str | None) -> str:
    if chosen == "json":
        from kvtrace.report.json import before_after_json

        return before_after_json(built)
    if chosen == "html":
        from kvtrace.report.before_after.page import before_after_html

        return before_after_html(built)
    if chosen == "md":
        from kvtrace.report.before_after.markdown import before_after_markdown

        return before_after_markdown(built)
    from kvtrace.report.before_after.text import before_after_text

    return _for_terminal(before_after_text(built, section=section))


def _check_section(section: str | None, known: Sequence[str]) -> None:
    if section is not None and section not in known:
        raise InputError(f"--section {section}: this report has none; it has {', '.join(known)}")


def _for_terminal(text: str) -> str:
    from kvtrace.report.terminal.encoding import encodable

    return encodable(text, sys.stdout.encoding or "utf-8")


def _are_runs(inputs: Sequence[Path], for_traces: Sequence[str]) -> list[bool]:
    """Return of each input whether it is a run; else it is a trace.

    for_traces: options given that a run cannot take any more. Raises InputError: there are such and runs.
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
    if runs and for_traces:
        raise InputError(
            f"{runs[0]}: a run, whose record and candidates are fixed; give its trace to try "
            f"{', '.join(for_traces)}"
        )
    return [path in runs for path in inputs]
