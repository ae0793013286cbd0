"""`kvtrace replay`: traces and scale artifacts in, a run out."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.commands.candidate_options import (
    AGAINST,
    ARTIFACT_FORMAT,
    BACKEND,
    DEVICE,
    ENGINE,
    FP8_FORMAT,
    MANIFEST,
    ONLINE,
    POLICY,
    SCALES,
    SKIP_LAYERS,
    TENSOR_PARALLEL,
    TRACES,
    chosen_setup,
    policy_stamp,
)
from kvtrace.commands.options import FORCE  # noqa: TC001 -- Typer reads the annotations
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


def replay(
    traces: TRACES,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run: a new directory.", show_default=False)
    ],
    scales: SCALES = None,
    artifact_format: ARTIFACT_FORMAT = None,
    against: AGAINST = None,
    engine: ENGINE = None,
    fp8_format: FP8_FORMAT = None,
    backend: BACKEND = None,
    tp: TENSOR_PARALLEL = None,
    skip_layers: SKIP_LAYERS = None,
    online: ONLINE = None,
    manifest: MANIFEST = None,
    policy: POLICY = None,
    device: DEVICE = None,
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
    from kvtrace.evaluation import compared_with, standard_candidates
    from kvtrace.evaluation import replay as replay_traces
    from kvtrace.runs.manifest import load_manifest
    from kvtrace.runs.write import check_output
    from kvtrace.scales import load_artifact
    from kvtrace.trace.reader import open_trace
    from kvtrace.trace.several import rows_left_out

    if direct and verify:
        raise InputError("one of --direct and --verify can be given: --verify replays both ways")
    check_output(output, force=force)
    memory_bytes = parse_bytes(memory)
    supplied, stamp = load_manifest(manifest) if manifest else None, policy_stamp(policy)
    opened = [open_trace(path) for path in traces]
    setup = chosen_setup(
        opened, engine=engine, fp8_format=fp8_format, backend=backend, tp=tp, skip_layers=skip_layers
    )
    artifacts = [load_artifact(path, artifact_format) for path in scales or []]
    candidates = compared_with(standard_candidates(opened, artifacts, setup, online or ()), against)
    notes: list[str] = []
    with show_progress("replay") as progress:
        replay_traces(
            opened,
            candidates,
            output,
            method="verify" if verify else "direct" if direct else "profile",
            device=device,
            memory_bytes=memory_bytes,
            manifest=supplied,
            policy=stamp,
            intervals=intervals,
            force=force,
            progress=progress,
            say=notes.append,
        )
    for line in (*rows_left_out(opened), *_invalid(output), *notes, *_what_was_read(output)):
        typer.echo(line, err=True)
    typer.echo(output)


def _invalid(run: Path) -> Iterator[str]:
    import pyarrow.parquet as pq

    from kvtrace.plain_text import plain
    from kvtrace.runs.schema import CANDIDATES

    columns = ["candidate", "status", "reason"]
    for row in pq.ParquetFile(run / CANDIDATES.file_name).read(columns).to_pylist():
        if row["status"] == "invalid":
            yield f"{plain(row['candidate'], 200)}: invalid, not scored: {plain(row['reason'] or '', 1_000)}"


def _what_was_read(run: Path) -> Iterator[str]:
    from kvtrace.plain_text import plain
    from kvtrace.runs.record import RunRecord
    from kvtrace.runs.schema import RUN_FILE
    from kvtrace.trace.format import unseal

    for source in unseal((run / RUN_FILE).read_bytes(), RunRecord).sources:
        name = plain(source.name, 200)
        if not source.tensors_reread:
            yield f"{name}: its profile was used, tensors were not reread (inspect --verify does)"
        elif source.method == "direct":
            yield f"{name}: replayed element by element"
