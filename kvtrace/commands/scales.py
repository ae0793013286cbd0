"""`kvtrace scales`: what an artifact holds, what an engine makes of it, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated, Literal

import typer

from kvtrace.commands.candidate_options import (  # noqa: TC001 -- Typer reads the annotations
    ARTIFACT_FORMAT,
    BACKEND,
    TENSOR_PARALLEL,
)
from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver
from kvtrace.commands.trace_inputs import trace_at

EXIT_ERRORS = 1


def scales(
    artifact: Annotated[Path, typer.Argument(help="A checkpoint or file of scales.")],
    trace: Annotated[Path | None, typer.Option("--trace", help="Compare with this trace.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="vllm, sglang, tensorrt-llm, or numerics such as vllm-cpu. Default: the format's own.",
        ),
    ] = None,
    backend: BACKEND = None,
    tp: TENSOR_PARALLEL = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", help="Compare the artifact's weights and tokenizer with this checkpoint's."
        ),
    ] = None,
    calibrated_at_length: Annotated[
        int | None,
        typer.Option("--calibrated-at-length", min=1, help="For artifacts that do not say."),
    ] = None,
    artifact_format: ARTIFACT_FORMAT = None,
    cache_dtype: Annotated[
        Literal["fp8", "nvfp4", "nvfp4_4over6"],
        typer.Option(
            "--cache-dtype", help="The cache that takes the scales; of nvfp4 they are the global ones."
        ),
    ] = "fp8",
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Audit a scale artifact: shipped, what the engine would use, what it used, what the trace needs.

    Exit code 1 if a finding is an error, 0 if none is, 2 if nothing could be read.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "scales", "torch")
    from kvtrace.errors import InputError, InvalidCandidateError
    from kvtrace.findings.artifact.weights import require_existing
    from kvtrace.report.scales.build import scales_report
    from kvtrace.report.scales.text import scales_text
    from kvtrace.scales import load_artifact
    from kvtrace.trace.reader import open_trace

    require_existing(against)
    try:
        report = scales_report(
            load_artifact(artifact, artifact_format),
            open_trace(trace_at(trace)) if trace else None,
            engine=engine,
            backend=backend,
            tp=tp,
            against=against,
            calibrated_at_length=calibrated_at_length,
            cache_dtype=cache_dtype,
        )
    except InvalidCandidateError as error:  # the command line asks for a setup that cannot be
        raise InputError(str(error)) from error
    if as_json or output_format == "json":
        deliver(report.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(scales_text(report), output, force=force)
    if report.has_errors:
        raise typer.Exit(EXIT_ERRORS)
