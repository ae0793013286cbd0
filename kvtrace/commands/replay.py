"""`kvtrace replay`: traces and scale artifacts in, a run out."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.candidate_options import (
    ARTIFACT_FORMAT,
    BACKEND,
    DEVICE,
    ENGINE,
    FP8_FORMAT,
    SCALES,
    SKIP_LAYERS,
    TENSOR_PARALLEL,
    TRACES,
    chosen_setup,
)
from kvtrace.commands.options import FORCE  # noqa: TC001 -- Typer reads the annotations


def replay(
    traces: TRACES,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run: a new directory.", show_default=False)
    ],
    scales: SCALES = None,
    artifact_format: ARTIFACT_FORMAT = None,
    engine: ENGINE = None,
    fp8_format: FP8_FORMAT = None,
    backend: BACKEND = None,
    tp: TENSOR_PARALLEL = None,
    skip_layers: SKIP_LAYERS = None,
    device: DEVICE = None,
    force: FORCE = False,
) -> None:
    """Replay traces through FP8 under every candidate, and write a run of additive sums.

    Candidates: bf16, the engine's effective scales (if its cache was FP8), 1.0, and each artifact.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "replay", "torch", "pyarrow", "safetensors")
    from kvtrace.commands.progress import show_progress
    from kvtrace.replay import replay as replay_traces
    from kvtrace.replay import standard_candidates
    from kvtrace.runs.write import check_output
    from kvtrace.scales import load_artifact
    from kvtrace.trace.reader import open_trace

    check_output(output, force=force)
    opened = [open_trace(path) for path in traces]
    setup = chosen_setup(
        opened, engine=engine, fp8_format=fp8_format, backend=backend, tp=tp, skip_layers=skip_layers
    )
    artifacts = [load_artifact(path, artifact_format) for path in scales or []]
    candidates = standard_candidates(opened, artifacts, setup)
    with show_progress("replay") as progress:
        replay_traces(opened, candidates, output, device=device, force=force, progress=progress)
    typer.echo(output)
