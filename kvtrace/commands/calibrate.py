"""`kvtrace calibrate`: traces in, scales that vLLM loads out."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtrace.commands.candidate_options import TRACES  # noqa: TC001 -- Typer reads the annotations
from kvtrace.commands.options import say
from kvtrace.commands.trace_inputs import trace_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.calibration.calibrate import Calibration
    from kvtrace.remedies.step import Step
    from kvtrace.trace.reader import Trace


def calibrate(
    traces: TRACES,
    output: Annotated[Path, typer.Option("--output", "-o", help="The scales: a new directory.")],
    method: Annotated[
        Literal["absmax", "percentile", "mse"], typer.Option(help="How a scale follows from the values.")
    ] = "absmax",
    percentile: Annotated[float | None, typer.Option(help="Of the magnitudes, such as 99.99.")] = None,
    headroom: Annotated[float, typer.Option(help="Factor on every scale.")] = 1.0,
    granularity: Annotated[
        Literal["tensor", "attn_head"], typer.Option(help="What one scale serves.")
    ] = "attn_head",
    merge_kv: Annotated[bool, typer.Option("--merge-kv", help="One scale for K and V.")] = False,
    power_of_two: Annotated[
        bool, typer.Option("--power-of-two", help="Scales that are powers of two.")
    ] = False,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Calibrate on this workload alone; repeat for more."),
    ] = None,
    max_position: Annotated[int | None, typer.Option(min=1, help="Only positions below this.")] = None,
    phase: Annotated[Literal["prefill", "decode"] | None, typer.Option(help="Only this phase.")] = None,
    holdout: Annotated[float, typer.Option(help="Share of requests held out to judge the scales on.")] = 0.0,
    holdout_workload: Annotated[
        list[str] | None, typer.Option(help="Hold out this workload; repeat for more.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the held-out requests.")] = 0,
    engine: Annotated[str, typer.Option(help="Numerics that mse and the evaluation use.")] = "vllm-cuda",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Write a deployable copy of this checkpoint, weights linked."),
    ] = None,
    sglang_json: Annotated[
        int | None,
        typer.Option(
            "--sglang-json",
            min=1,
            metavar="RANKS",
            help="Write SGLang's file of scales too, for so many tensor-parallel ranks.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make scales from traces: compressed-tensors scales and a manifest of what they were made on.

    Prints what the chosen width costs beside narrower and wider ones, and what the held-out requests say.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "calibrate", "torch")
    from kvtrace.calibration.calibrate import calibrate as calibrate_traces
    from kvtrace.calibration.dataset import DatasetRules
    from kvtrace.calibration.recipe import Recipe
    from kvtrace.calibration.saturated import saturation
    from kvtrace.calibration.save import SCALES_FILE
    from kvtrace.calibration.text import calibration_text
    from kvtrace.calibration.write import check_target, write_calibration, write_sglang_file
    from kvtrace.commands.progress import show_progress
    from kvtrace.numerics import find_engine
    from kvtrace.remedies.new_scales import NO_CHECKPOINT
    from kvtrace.remedies.text import steps_text, written_text
    from kvtrace.trace.reader import open_trace

    recipe = Recipe(
        method=method,
        percentile=percentile,
        headroom=headroom,
        granularity=granularity,
        merge_kv=merge_kv,
        power_of_two=power_of_two,
        engine=find_engine(engine).name,
    )
    rules = DatasetRules(
        workloads=tuple(workload or ()),
        max_position=max_position,
        phase=phase,
        holdout=holdout,
        holdout_workloads=tuple(holdout_workload or ()),
        seed=seed,
    )
    opened = [open_trace(trace_at(path)) for path in traces]
    for_sglang = sglang_json is not None
    check_target(output, checkpoint, opened[0].record.model, recipe.granularity, for_sglang=for_sglang)
    with show_progress("count") as progress:
        calibration = calibrate_traces(opened, recipe, rules, progress)
    saved = write_calibration(output, calibration, checkpoint=checkpoint, for_sglang=for_sglang)
    told = [calibration_text(calibration)]
    if clipped := saturation(opened, calibration.calibrated):
        told.append(f"{clipped.text(calibration.model.dtype)}.")
    if saved is not None:
        told.append(written_text(str(output), str(checkpoint), saved.num_linked, saved.copied))
        if (output / SCALES_FILE).exists():
            told.append(steps_text(_next(opened, calibration, output, checkpoint)))
        else:
            told.append("vLLM loads no KV-cache scales beside such weights: they are SGLang's alone.")
    else:
        told.append(f"Written to {output}\n{NO_CHECKPOINT}.")
    if sglang_json is not None:
        written = write_sglang_file(output, calibration, num_ranks=sglang_json)
        told.append(f"For SGLang: --quantization-param-path {written} --kv-cache-dtype fp8_e4m3")
    say("\n".join(told) + "\n")


def _next(
    traces: Sequence[Trace], calibration: Calibration, output: Path, checkpoint: Path | None
) -> tuple[Step, ...]:
    from kvtrace.remedies.new_scales import NewScales

    made = NewScales(
        traces=tuple(str(trace.path) for trace in traces),
        model=calibration.model,
        engine=traces[0].record.engine,
        granularity=calibration.recipe.granularity,
        headroom=calibration.recipe.headroom,
        checkpoint=str(checkpoint),
        output=str(output),
    )
    return made.after()
