"""`kvtrace inspect`: what a trace holds, whether it is sound, and what of it can be kept if not."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver, say
from kvtrace.commands.trace_inputs import trace_at
from kvtrace.errors import InputError


def inspect(
    trace: Annotated[Path, typer.Argument(help="A trace: NAME.kvtrace.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Reread every tensor, and count again what is counted.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write what is provably good to a new trace, -o NEW.")
    ] = False,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Show what a trace holds: model, engine, effective scales, sampling, coverage, integrity.

    With --repair, keep what is sound of a damaged trace in a new one and say what is lost. The original stays
    as it is.
    """
    wants_json = as_json or output_format == "json"
    if repair:
        _repair(trace, output, verify=verify, force=force, wants_json=wants_json)
        return
    from kvtrace.profile.store import verify_profiles
    from kvtrace.trace.reader import open_trace
    from kvtrace.trace.summary import summarize
    from kvtrace.trace.summary_text import summary_text

    opened = open_trace(trace_at(trace), may_lack_tokens=True)
    summary = summarize(opened, verify=verify)
    if verify:
        summary = summary.model_copy(update={"profiles": verify_profiles(opened)})
    text = summary.model_dump_json(indent=2) + "\n" if wants_json else summary_text(summary)
    deliver(text, output, force=force, for_programs=wants_json)


def _repair(trace: Path, new: Path | None, *, verify: bool, force: bool, wants_json: bool) -> None:
    if new is None:
        raise InputError("--repair needs -o NEW, the name of the new trace, such as NAME-repaired.kvtrace")
    if verify or force:
        raise InputError("--repair rereads everything and never overwrites: leave out --verify and --force")
    from kvtrace.trace.repair.repair import repair_trace
    from kvtrace.trace.repair.text import repair_text

    trace = trace_at(trace)
    found = repair_trace(trace, new)
    say(
        f"{found.model_dump_json(indent=2)}\n" if wants_json else repair_text(found, trace, new),
        for_programs=wants_json,
    )
