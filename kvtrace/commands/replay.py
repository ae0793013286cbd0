"""`kvtrace replay`: traces and scale artifacts in, a run out."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.candidate_options import TRACES, ReplayOptions, request_for, with_replay_options
from kvtrace.commands.notes import notes_on_stderr
from kvtrace.commands.options import FORCE, say
from kvtrace.errors import InputError


@with_replay_options()
def replay(
    traces: TRACES,
    output: Annotated[Path, typer.Option("--output", "-o", help="The run: a new directory.")],
    options: ReplayOptions,
    direct: Annotated[
        bool, typer.Option("--direct", help="Replay every value, instead of the trace's exact counts.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Replay both ways and compare.")] = False,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals",
            help="Sum by group of requests too, for intervals of clipped shares, clip error and SQNR. "
            "The first time it reads the tensors once more. Not done unless asked for.",
        ),
    ] = False,
    memory: Annotated[
        str, typer.Option("--memory", help="For unpacked tensors while they are read, such as 2GB.")
    ] = "256MiB",
    force: FORCE = False,
) -> None:
    """Replay traces through FP8 under every candidate, and write a run of additive sums.

    Candidates: bf16, the engine's effective scales (if its cache was static FP8), 1.0, and each artifact.
    The first replay of a trace reads its tensors and keeps exact counts in it; later ones read the counts.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "replay", "torch", "pyarrow", "safetensors")
    from kvtrace.capture.options import parse_bytes
    from kvtrace.commands.progress import show_progress
    from kvtrace.evaluation import replay as replay_request
    from kvtrace.runs.write import check_output

    if direct and verify:
        raise InputError("one of --direct and --verify can be given: --verify replays both ways")
    check_output(output, force=force)
    memory_bytes = parse_bytes(memory)
    with notes_on_stderr(logging.INFO):
        request = request_for(traces, options)
        request = replace(
            request,
            method="verify" if verify else "direct" if direct else "profile",
            memory_bytes=memory_bytes,
            intervals=intervals,
        )
        with show_progress("replay") as progress:
            replay_request(request, output, force=force, progress=progress)
    say(f"{output}\n")
