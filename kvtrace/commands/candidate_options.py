"""Options of every command that replays: which artifacts, applied by which engine."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from kvtrace.commands.trace_inputs import trace_at
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.evaluation import ReplayRequest
    from kvtrace.runs.record import PolicyStamp
    from kvtrace.trace.reader import Trace


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
        help="Numerics to replay: {engines}. "
        "Default: the captured engine's if its cache was static FP8, else {default_engine}.",
    ),
]
FP8_FORMAT = Annotated[
    str | None,
    typer.Option("--fp8-format", help="{fp8_formats}. Default: the engine's."),
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
CACHE_DTYPE = Annotated[
    list[str] | None,
    typer.Option(
        "--cache-dtype",
        "--online",
        metavar="NAME",
        help="A cache format to compare, repeatable: {cache_formats}; K and V apart, as k=bf16,v=fp8; by "
        "layer, as fp8/0,1:auto/4-7:nvfp4; or a checkpoint (its hf_quant_config.json) whose recipe it is. "
        "nvfp4 and fp8 are tried with 1.0 and with each --scales, the others take no scales.",
    ),
]
SWEEP = Annotated[
    bool | None,
    typer.Option(
        "--sweep",
        help="Compare static scales made of these traces, too: percentiles 99.9 and 99.99, the largest "
        "magnitude, and 2 and 16 times it, per tensor.",
    ),
]
DEVICE = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:N. Default: CUDA if there is one."),
]

CHECKPOINT = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        help="The model, for W_O: harm through it, where the traces hold queries.",
    ),
]
ATTENTION = Annotated[
    bool | None,
    typer.Option(
        "--attention/--no-attention",
        help="Replay attention where the traces hold queries: what candidates do to it. Default: do.",
        show_default=False,
    ),
]
MANIFEST = Annotated[
    Path | None,
    typer.Option("--manifest", help="Serving manifest, JSON: kept in the run."),
]
POLICY = Annotated[
    Path | None,
    typer.Option("--policy", help="Its hash and date are kept in the run: limits before results."),
]


class CommandThatReplays(TyperCommand):
    """Its options' help names engines and formats, which are loaded when that help is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the names in it."""
        from kvtrace.formats.named import FORMATS as CACHE_FORMATS
        from kvtrace.numerics import DEFAULT_ENGINE, ENGINES, FORMATS

        names = {
            "{engines}": _listed(ENGINES),
            "{default_engine}": DEFAULT_ENGINE,
            "{fp8_formats}": _listed(FORMATS),
            "{cache_formats}": _listed(name for name in CACHE_FORMATS if name != "auto"),
        }
        for option in self.params:
            for place, said in names.items():
                if isinstance(option, TyperOption) and option.help:
                    option.help = option.help.replace(place, said)
        super().format_help(ctx, formatter)


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What every command that replays is told, an option a field."""

    scales: SCALES = None
    artifact_format: ARTIFACT_FORMAT = None
    against: AGAINST = None
    engine: ENGINE = None
    fp8_format: FP8_FORMAT = None
    backend: BACKEND = None
    tp: TENSOR_PARALLEL = None
    skip_layers: SKIP_LAYERS = None
    cache_dtype: CACHE_DTYPE = None
    sweep: SWEEP = None
    manifest: MANIFEST = None
    policy: POLICY = None
    checkpoint: CHECKPOINT = None
    attention: ATTENTION = None
    device: DEVICE = None


def with_replay_options(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `ReplayOptions`, but those left out, where it takes `options`.

    Typer reads a command's signature: the decorated one has an option in the place of each field.
    """
    hints = get_type_hints(ReplayOptions, include_extras=True)
    names = [field.name for field in fields(ReplayOptions) if field.name not in left_out]
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in names]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            options = {name: given.pop(name) for name in names if name in given}
            command(options=ReplayOptions(**options), **given)

        shown: list[Parameter] = []
        for one in signature(command, eval_str=True).parameters.values():
            shown += added if one.name == "options" else [one.replace(kind=Parameter.KEYWORD_ONLY)]
        run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in shown}
        return run

    return decorated


def request_for(traces: list[Path], options: ReplayOptions) -> ReplayRequest:
    """Return the replay that the options ask for.

    Raises InputError: an unknown name or layer, no captured layer is left to quantize, or a trace or file
    cannot be used.
    """
    from kvtrace.evaluation import standard_request
    from kvtrace.runs.manifest import load_manifest
    from kvtrace.trace.reader import open_trace

    supplied = load_manifest(options.manifest) if options.manifest else None
    stamp = _policy_stamp(options.policy)
    opened = [open_trace(trace_at(path)) for path in traces]
    setup = replace(
        _chosen_setup(opened, options.engine, options.fp8_format),
        backend=options.backend,
        tp=options.tp,
        skip_layers=_layers(options.skip_layers, opened),
    )
    request = standard_request(
        opened,
        options.scales or (),
        setup,
        artifact_format=options.artifact_format,
        cache_dtypes=options.cache_dtype or (),
        against=options.against,
        sweep=bool(options.sweep),
        attention=options.attention is not False,
    )
    return replace(
        request,
        manifest=supplied,
        policy=stamp,
        checkpoint=options.checkpoint,
        device=options.device,
    )


def _policy_stamp(path: Path | None) -> PolicyStamp | None:
    """Return what a run keeps of the policy at `path`. Raises PolicyError: it cannot be used."""
    if path is None:
        return None
    from kvtrace.gate.policy import load_policy
    from kvtrace.runs.record import PolicyStamp

    file = load_policy(path)
    return PolicyStamp(file.sha256, file.policy.date.isoformat())


def _chosen_setup(traces: Sequence[Trace], engine: str | None, fp8_format: str | None) -> ServingSetup:
    from kvtrace.candidates.captured import default_setup, format_on
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.numerics import find_engine, find_pair

    setup = (
        default_setup(traces)
        if engine is None
        else ServingSetup(find_engine(engine).name, format_on(engine, traces))
    )
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
