"""`kvtrace calibrate`: traces in, scales that vLLM loads out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.candidate_options import TRACES  # noqa: TC001 -- Typer reads the annotations
from kvtrace.commands.options import say


class Method(StrEnum):
    """How a scale follows from the values."""

    absmax = "absmax"
    percentile = "percentile"
    mse = "mse"


class Granularity(StrEnum):
    """What one scale serves."""

    tensor = "tensor"
    attn_head = "attn_head"


class Phase(StrEnum):
    """Where a token comes from."""

    prefill = "prefill"
    decode = "decode"


def calibrate(
    traces: TRACES,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The scales: a new directory.", show_default=False)
    ],
    method: Annotated[Method, typer.Option(help="How a scale follows from the values.")] = Method.absmax,
    percentile: Annotated[
        float | None, typer.Option(help="Of the magnitudes, such as 99.99.", show_default=False)
    ] = None,
    headroom: Annotated[float, typer.Option(help="Factor on every scale.")] = 1.0,
    granularity: Annotated[Granularity, typer.Option(help="What one scale serves.")] = Granularity.attn_head,
    merge_kv: Annotated[bool, typer.Option("--merge-kv", help="One scale for K and V.")] = False,
    power_of_two: Annotated[
        bool, typer.Option("--power-of-two", help="Scales that are powers of two.")
    ] = False,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Calibrate on this workload alone; repeat for more.", show_default=False),
    ] = None,
    max_position: Annotated[
        int | None, typer.Option(min=1, help="Only positions below this.", show_default=False)
    ] = None,
    phase: Annotated[Phase | None, typer.Option(help="Only this phase.", show_default=False)] = None,
    holdout: Annotated[float, typer.Option(help="Share of requests held out to judge the scales on.")] = 0.0,
    holdout_workload: Annotated[
        list[str] | None, typer.Option(help="Hold out this workload; repeat for more.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the held-out requests.")] = 0,
    engine: Annotated[str, typer.Option(help="Numerics that mse and the evaluation use.")] = "vllm-cuda",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Write a deployable copy of this checkpoint, weights linked.", show_default=False),
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
    from kvtrace.calibration.text import calibration_text
    from kvtrace.calibration.write import check_target, write_calibration
    from kvtrace.commands.progress import show_progress
    from kvtrace.numerics import find_engine
    from kvtrace.trace.reader import open_trace

    recipe = Recipe(
        method=method.value,
        percentile=percentile,
        headroom=headroom,
        granularity=granularity.value,
        merge_kv=merge_kv,
        power_of_two=power_of_two,
        engine=find_engine(engine).name,
    )
    rules = DatasetRules(
        workloads=tuple(workload or ()),
        max_position=max_position,
        phase=None if phase is None else phase.value,
        holdout=holdout,
        holdout_workloads=tuple(holdout_workload or ()),
        seed=seed,
    )
    opened = [open_trace(path) for path in traces]
    check_target(output, checkpoint, opened[0].record.model, recipe.granularity)
    with show_progress("count") as progress:
        calibration = calibrate_traces(opened, recipe, rules, progress)
    write_calibration(output, calibration, checkpoint=checkpoint)
    say(f"{calibration_text(calibration)}\nWritten to {output}\n")
