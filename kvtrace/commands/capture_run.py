"""`kvtrace capture run`: a trace from a file of labelled prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvtrace.commands.capture_options import (
    BYTE_BUDGET,
    LAYERS,
    POSITION_STRIDE,
    PROBE_POSITIONS,
    PROBE_REQUESTS,
    QUERIES,
    REQUEST_FRACTION,
    Queries,
)
from kvtrace.commands.options import FORCE, say
from kvtrace.plain_text import plain_line
from kvtrace.signals import EXIT_INTERRUPTED, exit_code_of_signal, signals_interrupt


def capture_run(
    model: Annotated[str, typer.Option("--model", help="As vLLM takes it.")],
    prompts: Annotated[
        Path,
        typer.Option(
            "--prompts",
            help='JSON lines with "prompt" or "messages", "workload", and if wanted "id", "max_tokens".',
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The trace: NAME.kvtrace.")],
    vllm_python: Annotated[
        Path | None,
        typer.Option(
            "--vllm-python", help="Python of vLLM's environment. Default: .venv-vllm here, else this one."
        ),
    ] = None,
    position_stride: POSITION_STRIDE = 16,
    request_fraction: REQUEST_FRACTION = 1.0,
    layers: LAYERS = None,
    byte_budget: BYTE_BUDGET = None,
    queries: QUERIES = Queries.NONE,
    probe_requests: PROBE_REQUESTS = None,
    probe_positions: PROBE_POSITIONS = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Of an answer whose prompt does not say.")
    ] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of the sampled positions.")] = None,
    flush_seconds: Annotated[
        float, typer.Option("--flush-seconds", help="Rows are committed after so long, or a full chunk.")
    ] = 30.0,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option("--engine-arg", help="NAME=VALUE of vllm.LLM, such as max_model_len=8192; repeatable."),
    ] = None,
    force: FORCE = False,
) -> None:
    """Send a file of labelled prompts through vLLM, offline, with capture on. Ctrl-C keeps what there is."""
    from kvtrace.capture.engine_arguments import parse_engine_arguments
    from kvtrace.capture.options import CaptureOptions, parse_bytes, parse_layers
    from kvtrace.capture.prompts import read_prompts, require_chat_template
    from kvtrace.capture.run import OfflineRun, capture_offline, check_output
    from kvtrace.capture.vllm_python import find_vllm_python
    from kvtrace.commands.progress import show_progress
    from kvtrace.errors import InputError

    if request_fraction <= 0 or flush_seconds <= 0:
        raise InputError("--request-fraction and --flush-seconds are expected to be above 0")
    check_output(output, overwrite=force)
    options = CaptureOptions(
        output.parent,
        position_stride=position_stride,
        request_fraction=request_fraction,
        layers=parse_layers(layers),
        byte_budget=None if byte_budget is None else parse_bytes(byte_budget),
        queries=queries.value,
        probe_requests=probe_requests,
        probe_positions=probe_positions,
        flush_seconds=flush_seconds,
        seed=seed,
    )
    run = OfflineRun(
        model=model,
        prompts=read_prompts(prompts),
        engine=parse_engine_arguments(engine_arg or [], taken=("model", "kv_transfer_config")),
        temperature=temperature,
        max_tokens=max_tokens,
    )
    require_chat_template(Path(model), run.prompts, prompts)
    python = find_vllm_python(vllm_python)
    with show_progress("capture") as progress, signals_interrupt():
        captured = capture_offline(run, options, python, output, progress, overwrite=force)
    for fault in captured.faults:
        typer.echo(plain_line(f"kvtrace: {output}: {fault}"), err=True)
    if captured.is_interrupted:
        left = f"{output} holds what was committed" if captured.has_trace else "nothing is left"
        typer.echo(
            f"kvtrace: interrupted after {captured.num_done} of {len(run.prompts)} requests; {left}", err=True
        )
        raise typer.Exit(exit_code_of_signal() or EXIT_INTERRUPTED)
    say(f"{output}\n")
