"""Options of every command that replays: which artifacts, applied by which engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.errors import InputError
from kvtrace.numerics import DEFAULT_ENGINE, ENGINES, FORMATS
from kvtrace.numerics.online import ONLINE_POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.evaluation import ReplayRequest
    from kvtrace.runs.record import PolicyStamp
    from kvtrace.trace.reader import Trace


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


TRACES = Annotated[list[Path], typer.Argument(help="Traces: NAME.kvtrace.")]
SCALES = Annotated[
    list[Path] | None,
    typer.Option("--scales", help="A scale artifact (checkpoint or file); repeat for more."),
]
ARTIFACT_FORMAT = Annotated[
    str | None,
    typer.Option(
        "--artifact-format",
        help="Read artifacts as this format, such as sglang-json; an unknown one lists all.",
    ),
]
AGAINST = Annotated[
    Path | None,
    typer.Option(
        "--against", help="Compare each --scales checkpoint's weights and tokenizer with this one's."
    ),
]
ENGINE = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help=f"Numerics to replay: {_listed(ENGINES)}. "
        f"Default: the captured engine's if its cache was static FP8, else {DEFAULT_ENGINE}.",
    ),
]
FP8_FORMAT = Annotated[
    str | None,
    typer.Option("--fp8-format", help=f"{_listed(FORMATS)}. Default: the engine's."),
]


def known_backend(name: str | None) -> str | None:
    """Return the name given to --backend. Raises InputError: kvtrace knows no such backend."""
    if name is not None:
        from kvtrace.numerics.backends import find_backend

        find_backend(name)
    return name


BACKEND = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="Attention backend that applies the scales, by its name, such as FLASH_ATTN or FLASHINFER.",
        callback=known_backend,
    ),
]
TENSOR_PARALLEL = Annotated[
    int | None,
    typer.Option("--tp", min=1, help="Tensor-parallel ranks that load the scales."),
]
SKIP_LAYERS = Annotated[
    str | None,
    typer.Option("--skip-layers", help="Layers left unquantized, such as 0,1,29."),
]
ONLINE = Annotated[
    list[str] | None,
    typer.Option("--online", help=f"A cache with scales per token and head: {_listed(ONLINE_POLICIES)}."),
]
DEVICE = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:N. Default: CUDA if there is one."),
]

MANIFEST = Annotated[
    Path | None,
    typer.Option("--manifest", help="Serving manifest, JSON: kept in the run."),
]
POLICY = Annotated[
    Path | None,
    typer.Option("--policy", help="Its hash and date are kept in the run: limits before results."),
]


def request_for(
    traces: list[Path],
    *,
    scales: list[Path] | None,
    artifact_format: str | None,
    against: Path | None,
    engine: str | None,
    fp8_format: str | None,
    backend: str | None,
    tp: int | None,
    skip_layers: str | None,
    manifest: Path | None,
    policy: Path | None,
    device: str | None,
    online: list[str] | None = None,
) -> ReplayRequest:
    """Return the replay that the options ask for.

    Raises InputError: an unknown name or layer, no captured layer is left to quantize, or a trace or file
    cannot be used.
    """
    from kvtrace.evaluation import standard_request
    from kvtrace.runs.manifest import load_manifest
    from kvtrace.trace.reader import open_trace

    supplied, stamp = load_manifest(manifest) if manifest else None, _policy_stamp(policy)
    opened = [open_trace(path) for path in traces]
    setup = _chosen_setup(opened, engine, fp8_format)
    setup = replace(setup, backend=backend, tp=tp, skip_layers=_layers(skip_layers, opened))
    request = standard_request(
        opened,
        scales or (),
        setup,
        artifact_format=artifact_format,
        policies=online or (),
        against=against,
    )
    return replace(request, manifest=supplied, policy=stamp, device=device)


def _policy_stamp(path: Path | None) -> PolicyStamp | None:
    """Return what a run keeps of the policy at `path`. Raises PolicyError: it cannot be used."""
    if path is None:
        return None
    from kvtrace.gate.policy import load_policy
    from kvtrace.runs.record import PolicyStamp

    file = load_policy(path)
    return PolicyStamp(file.sha256, file.policy.date.isoformat())


def _chosen_setup(traces: Sequence[Trace], engine: str | None, fp8_format: str | None) -> ServingSetup:
    from kvtrace.candidates.captured import default_setup
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.numerics import find_engine, find_pair

    setup = default_setup(traces) if engine is None else ServingSetup(find_engine(engine).name)
    setup = replace(setup, format=fp8_format or setup.format)
    find_pair(setup.engine, setup.fp8_format)
    return setup


def _layers(text: str | None, traces: Sequence[Trace]) -> tuple[int, ...]:
    num_layers = max(trace.record.model.num_layers for trace in traces)
    try:
        layers = sorted({int(part) for part in (text or "").split(",") if part.strip()})
    except ValueError as error:
        raise InputError(f"--skip-layers {text!r}: expected layer numbers such as 0,1,29") from error
    if layers and not 0 <= layers[0] <= layers[-1] < num_layers:
        raise InputError(f"--skip-layers {text!r}: the model has layers 0 to {num_layers - 1}")
    if layers and all(trace.layers.keys() <= set(layers) for trace in traces):
        raise InputError(f"--skip-layers {text!r}: no captured layer is left to quantize; leave out fewer")
    return tuple(layers)
