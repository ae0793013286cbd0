"""`kvtrace capture flags`: the arguments of a server that captures, and a labelled call to it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
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
from kvtrace.commands.options import FORMAT_TEXT_JSON, JSON, say


def capture_flags(
    model: Annotated[str, typer.Option("--model", help="As vllm serve takes it.")],
    directory: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for traces; one a start of an engine."),
    ],
    position_stride: POSITION_STRIDE = 16,
    request_fraction: REQUEST_FRACTION = 1.0,
    layers: LAYERS = None,
    byte_budget: BYTE_BUDGET = None,
    queries: QUERIES = Queries.NONE,
    probe_requests: PROBE_REQUESTS = None,
    probe_positions: PROBE_POSITIONS = None,
    only_workload: Annotated[
        list[str] | None,
        typer.Option("--only-workload", help="Sample only requests with this label; repeat for more."),
    ] = None,
    off: Annotated[
        bool, typer.Option("--off", help="Start switched off, and print how to switch it on.")
    ] = False,
    workload: Annotated[str, typer.Option("--workload", help="The label in the client's call.")] = "chat",
    request_id: Annotated[
        str | None,
        typer.Option("--id", help="The client's own id in its call, to join outcomes later."),
    ] = None,
    keep_request_ids: Annotated[
        bool,
        typer.Option(
            "--request-ids/--no-request-ids",
            help="Keep a keyed hash of X-Request-Id, to join answers that know only that.",
        ),
    ] = True,
    base_url: Annotated[
        str, typer.Option("--url", help="Where clients reach the server.")
    ] = "http://localhost:8000",
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
) -> None:
    """Print the command that serves a model with capture on, and a labelled call with curl and Python."""
    import json
    from dataclasses import asdict

    from kvtrace.capture.flags import capture_commands, commands_text
    from kvtrace.capture.options import (
        CaptureOptions,
        check_label,
        parse_bytes,
        parse_layers,
    )
    from kvtrace.errors import InputError
    from kvtrace.trace.capture_names import MAX_CLIENT_ID_CHARS, MAX_LABEL_CHARS

    check_label("--workload", workload, MAX_LABEL_CHARS)
    for label in only_workload or ():
        check_label("--only-workload", label, MAX_LABEL_CHARS)
    if request_id is not None:
        check_label("--id", request_id, MAX_CLIENT_ID_CHARS)
    if not base_url.startswith(("http://", "https://")):
        raise InputError(f"--url {base_url[:200]!r}: expected http:// or https://, such as the default")
    if request_fraction == 0:
        raise InputError("--request-fraction 0 samples nothing; to start switched off give --off")
    options = CaptureOptions(
        directory,
        enabled=not off,
        position_stride=position_stride,
        request_fraction=request_fraction,
        layers=parse_layers(layers),
        workloads=tuple(only_workload) if only_workload else None,
        byte_budget=None if byte_budget is None else parse_bytes(byte_budget),
        external_ids=keep_request_ids,
        queries=queries.value,
        probe_requests=probe_requests,
        probe_positions=probe_positions,
    )
    commands = capture_commands(
        options, model=model, base_url=base_url.rstrip("/"), workload=workload, request_id=request_id
    )
    if as_json or output_format == "json":
        say(json.dumps(asdict(commands), indent=2) + "\n", for_programs=True)
    else:
        say(commands_text(commands))
