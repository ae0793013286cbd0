"""`kvtrace report`: a trace or a run in, the answer out."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

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
    chosen_setup,
)
from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, TextFormat, chosen_format, deliver
from kvtrace.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvtrace.replay import EngineSetup
    from kvtrace.trace.reader import Trace


def report(
    inputs: Annotated[
        list[Path], typer.Argument(metavar="TRACE|RUN", help="Traces, or one run.", show_default=False)
    ],
    scales: SCALES = None,
    artifact_format: ARTIFACT_FORMAT = None,
    engine: ENGINE = None,
    fp8_format: FP8_FORMAT = None,
    backend: BACKEND = None,
    tp: TENSOR_PARALLEL = None,
    skip_layers: SKIP_LAYERS = None,
    device: DEVICE = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Heads listed per candidate, K and V.")] = 5,
    output_format: FORMAT_TEXT_JSON = TextFormat.text,
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Say which heads leave the FP8 range under which scales, K or V, at which positions, in which workload.

    A trace is replayed first: with the engine's effective scales, 1.0 and each artifact. A run, the output of
    kvtrace replay, is only reported.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "report", "duckdb", "pyarrow")
    from kvtrace.report.build import build_report
    from kvtrace.report.json import report_json
    from kvtrace.report.terminal import report_text
    from kvtrace.runs.open import open_run

    if output is not None and output.exists() and not force:
        raise OutputExistsError(f"{output}: exists; give another name, or --force to overwrite it")
    is_run = _is_run(inputs, scales or [])
    with nullcontext("") if is_run else TemporaryDirectory(prefix="kvtrace-") as scratch:
        if is_run:
            run = inputs[0]
        else:
            require_extra("analysis", "report", "torch", "safetensors")

            def setup_for(traces: Sequence[Trace]) -> EngineSetup:
                return chosen_setup(
                    traces,
                    engine=engine,
                    fp8_format=fp8_format,
                    backend=backend,
                    tp=tp,
                    skip_layers=skip_layers,
                )

            run = _replayed(inputs, scales or [], artifact_format, setup_for, device, Path(scratch) / "run")
        built = build_report(open_run(run), top=top, run_kept=is_run)
    if chosen_format(output_format, as_json=as_json) is TextFormat.json:
        deliver(report_json(built), output, force=force)
    else:
        deliver(report_text(built), output, force=force)


def _is_run(inputs: list[Path], scales: list[Path]) -> bool:
    """Return whether the input is one run; False where all are traces."""
    from kvtrace.runs.schema import RUN_FILE

    runs = [path for path in inputs if (path / RUN_FILE).is_file()]
    if not runs:
        return False
    if len(inputs) > 1:
        raise InputError(f"{runs[0]}: a run, given with others; expected one run, or any number of traces")
    if scales:
        raise InputError(f"{runs[0]}: a run, whose candidates are fixed; give its trace to try --scales")
    return True


def _replayed(
    paths: list[Path],
    scales: list[Path],
    artifact_format: str | None,
    setup_for: Callable[[Sequence[Trace]], EngineSetup],
    device: str | None,
    out: Path,
) -> Path:
    from kvtrace.commands.progress import show_progress
    from kvtrace.replay import replay, standard_candidates
    from kvtrace.scales import load_artifact
    from kvtrace.trace.reader import open_trace

    traces = [open_trace(path) for path in paths]
    artifacts = [load_artifact(path, artifact_format) for path in scales]
    candidates = standard_candidates(traces, artifacts, setup_for(traces))
    with show_progress("replay") as progress:
        return replay(traces, candidates, out, device=device, progress=progress)
