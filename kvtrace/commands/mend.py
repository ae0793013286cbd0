"""`kvtrace mend`: a trace of a faulty deployment and its checkpoint in, one to serve in its place out."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from kvtrace.commands.options import JSON, check_absent, say
from kvtrace.commands.trace_inputs import trace_at


def mend(
    trace: Annotated[Path, typer.Argument(help="A trace: NAME.kvtrace, or a folder, whose latest counts.")],
    checkpoint: Annotated[
        Path, typer.Option("--checkpoint", help="The served model's directory; it is only read.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The mended checkpoint: a new directory, weights linked.")
    ],
    headroom: Annotated[
        float | None,
        typer.Option(help="Factor on every scale. Default: 2, which costs next to nothing."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Audit what ran, calibrate on the trace, write a checkpoint to serve, and print what to run next.

    Scales are per KV head where the captured engine and the model's format take them, else per tensor.
    Nothing is written where the scales that ran are sound, or where something else is wrong.
    Exit code 1: something is wrong that new scales do not mend.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "mend", "torch", "duckdb", "pyarrow")
    import logging

    from pydantic import TypeAdapter

    from kvtrace.commands.candidate_options import ReplayOptions, request_for
    from kvtrace.commands.notes import notes_on_stderr
    from kvtrace.commands.progress import show_progress
    from kvtrace.commands.replay_into import replay_into
    from kvtrace.mend.mend import mend as mend_trace
    from kvtrace.mend.model import Mended
    from kvtrace.mend.text import mended_text
    from kvtrace.runs.open import open_run
    from kvtrace.scales import load_artifact
    from kvtrace.trace.reader import open_trace

    path = trace_at(trace)
    check_absent(output, force=False)
    holds_scales = bool(load_artifact(checkpoint).scales)
    options = ReplayOptions(scales=[checkpoint] if holds_scales else None)
    with notes_on_stderr(logging.WARNING), TemporaryDirectory(prefix="kvtrace-") as scratch:
        request = request_for([path], options)
        run = open_run(replay_into(request, False, Path(scratch) / "run"))
        with show_progress("count") as progress:
            mended = mend_trace(
                run,
                open_trace(path),
                checkpoint,
                output,
                headroom=headroom,
                is_audited=holds_scales,
                progress=progress,
            )
    if as_json:
        say(TypeAdapter(Mended).dump_json(mended, indent=2).decode() + "\n", for_programs=True)
    else:
        say(mended_text(mended, str(checkpoint)))
    if mended.written is None and mended.audited.finding is not None:
        raise typer.Exit(1)
