"""`kvtrace capture plan`: what a sampling costs and what it can tell."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated, Literal

import typer

from kvtrace.commands.capture_options import REQUEST_FRACTION  # noqa: TC001 -- Typer reads the annotations
from kvtrace.commands.options import FORMAT_TEXT_JSON, JSON, say


def _size(name: str, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, min=1, help=what)
    return option


def capture_plan(
    model: Annotated[
        Path | None,
        typer.Option("--model", help="A checkpoint whose config.json has the sizes."),
    ] = None,
    layers: Annotated[int | None, _size("--layers", "Captured layers.")] = None,
    kv_heads: Annotated[int | None, _size("--kv-heads", "KV heads, over all ranks.")] = None,
    head_dim: Annotated[int | None, _size("--head-dim", "Values of one head.")] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option("--dtype", help="Of K and V; default: bfloat16."),
    ] = None,
    rate: Annotated[float, typer.Option("--rate", help="Prompt and output tokens a second.")] = 1000.0,
    tokens_per_request: Annotated[
        float, typer.Option("--tokens-per-request", min=1.0, help="Prompt and output.")
    ] = 1000.0,
    position_stride: Annotated[
        list[int] | None,
        typer.Option(
            "--position-stride",
            min=1,
            help="1 in so many positions; repeat for more. Default: 1, 4, 16 and 64.",
        ),
    ] = None,
    request_fraction: REQUEST_FRACTION = 1.0,
    fraction: Annotated[float, typer.Option("--fraction", help="Expected: of a head's vectors.")] = 0.01,
    margin: Annotated[float, typer.Option("--margin", help="How exactly: fraction ± margin.")] = 0.005,
    correlation: Annotated[
        float, typer.Option("--correlation", help="Between the vectors of a request, 0 to 1.")
    ] = 0.1,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the interval.")] = 0.95,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
) -> None:
    """Say how many bytes a sampling takes, and how many requests tell a fraction of out-of-range vectors."""
    import json
    from dataclasses import asdict

    from kvtrace.capture.model_shape import ModelShape, read_model_shape
    from kvtrace.capture.plan import Question, plan_capture
    from kvtrace.capture.plan_text import plan_text
    from kvtrace.errors import InputError

    if model is not None:
        found = read_model_shape(model)
        shape = ModelShape(
            layers or found.num_layers,
            kv_heads or found.num_kv_heads,
            head_dim or found.head_dim,
            dtype or found.dtype,
        )
    elif layers and kv_heads and head_dim:
        shape = ModelShape(layers, kv_heads, head_dim, dtype or "bfloat16")
    else:
        raise InputError("expected --model, or all of --layers, --kv-heads and --head-dim")
    if not request_fraction > 0:
        raise InputError(f"--request-fraction is {request_fraction:g}, expected more than 0")
    plan = plan_capture(
        shape,
        Question(fraction, margin, correlation, confidence),
        strides=position_stride or (1, 4, 16, 64),
        tokens_per_second=rate,
        tokens_per_request=tokens_per_request,
        request_fraction=request_fraction,
    )
    if as_json or output_format == "json":
        say(json.dumps(asdict(plan), indent=2) + "\n", for_programs=True)
    else:
        say(plan_text(plan))
