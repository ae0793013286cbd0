"""What is planned: by options, else an engine's words, else a trace, else the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kvtrace.capacity.families import INSTEAD
from kvtrace.capacity.model import ModelLayers, model_layers, read_model_layers
from kvtrace.capacity.serving import GPU_BATCHED_TOKENS, Platform, Serving
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvtrace.capacity.engine_facts import EngineFacts
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says. None: nothing."""

    max_model_len: int | None = None
    tp: int | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    platform: Platform | None = None
    backend: str | None = None
    prefix_caching: bool | None = None
    hybrid_manager: bool | None = None
    skip_layers: tuple[str, ...] = ()
    speculative_tokens: int = 0
    num_blocks: int | None = None
    own_draft: bool = False
    draft: Path | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A model and how it is served."""

    model: ModelLayers
    serving: Serving
    assumptions: tuple[str, ...]


def planned(source: Path | Trace, engine: EngineFacts | None, asked: Asked) -> Planned:
    """Return what is to be planned.

    source: a checkpoint, a config.json or an opened trace. Raises InputError: a size is missing, or the
    layout is one that kvtrace does not know.
    """
    from kvtrace.trace.reader import Trace

    trace = source if isinstance(source, Trace) else None
    model = (
        _of_trace(trace, asked)
        if trace
        else read_model_layers(cast("Path", source), own_draft=asked.own_draft)
    )
    if asked.draft is not None:
        model = model.with_draft(read_model_layers(asked.draft))
    settings: Mapping[str, Any] = trace.record.engine.settings if trace else {}
    _check_parallel(engine, settings)
    assumptions: list[str] = []
    skip = asked.skip_layers or (engine.skip_layers if engine else ())
    _check_layout(engine, model, skip)
    disabled = _at(settings, "scheduler_config", "disable_hybrid_kv_cache_manager")
    serving = Serving(
        max_model_len=_length(model, trace, engine, asked, assumptions),
        skip_layers=skip,
        tp=asked.tp or (engine and engine.tp) or (trace.record.engine.tensor_parallel_size if trace else 1),
        block_size=_block_size(model, trace, engine, asked, skip, assumptions),
        max_num_batched_tokens=_batched(model, settings, asked, assumptions),
        platform=_platform(trace, engine, asked),
        backend=asked.backend,
        prefix_caching=_first(
            asked.prefix_caching,
            engine.prefix_caching if engine else None,
            _at(settings, "cache_config", "enable_prefix_caching"),
            default=True,
        ),
        hybrid_manager=_first(asked.hybrid_manager, None if disabled is None else not disabled, default=True),
        speculative_tokens=asked.speculative_tokens,
        num_blocks=asked.num_blocks,
    )
    return Planned(model, serving, tuple(assumptions))


def _of_trace(trace: Trace, asked: Asked) -> ModelLayers:
    record = trace.record.model
    if not record.hf_config:
        raise InputError(f"{trace.path}: has no model configuration; give the model's config.json")
    config = {"dtype": record.dtype, **record.hf_config}
    return model_layers(config, trace.path, name=record.name, own_draft=asked.own_draft)


def _length(
    model: ModelLayers,
    trace: Trace | None,
    engine: EngineFacts | None,
    asked: Asked,
    assumptions: list[str],
) -> int:
    said = (
        asked.max_model_len
        or (engine and engine.max_model_len)
        or (trace.record.model.max_model_len if trace else None)
    )
    if said:
        return said
    if model.max_model_len is None:
        raise InputError(f"{model.name}: its configuration has no longest length; give --max-model-len")
    assumptions.append(f"requests of {model.max_model_len:,} tokens, the model's longest (--max-model-len)")
    return model.max_model_len


def _block_size(
    model: ModelLayers,
    trace: Trace | None,
    engine: EngineFacts | None,
    asked: Asked,
    skip: tuple[str, ...],
    assumptions: list[str],
) -> int | None:
    """Return the block size that was asked for; an engine's own where nothing has rounded it up since."""
    if asked.block_size is not None:
        return asked.block_size
    of_another_device = asked.platform is not None and trace is not None and asked.platform != _device(trace)
    said = (engine and engine.block_size) or (
        trace.record.engine.block_size if trace and not of_another_device else None
    )
    if said and not model.is_hybrid and not skip:
        return said
    assumptions.append(
        "blocks as the first backend that runs the cache dtype prefers (--block-size, --backend)"
    )
    return None


def _batched(model: ModelLayers, settings: Mapping[str, Any], asked: Asked, assumptions: list[str]) -> int:
    said = asked.max_num_batched_tokens or _at(settings, "scheduler_config", "max_num_batched_tokens")
    if type(said) is int and said > 0:
        return said
    if any(layer.kind in ("sliding", "chunked") for layer in model.layers):
        assumptions.append(
            f"{GPU_BATCHED_TOKENS:,} tokens a batch, for which windows keep blocks (--max-num-batched-tokens)"
        )
    return GPU_BATCHED_TOKENS


def _platform(trace: Trace | None, engine: EngineFacts | None, asked: Asked) -> Platform:
    if asked.platform is not None:
        return asked.platform
    if engine is not None and engine.is_cpu is not None:
        return "cpu" if engine.is_cpu else "gpu"
    return "gpu" if trace is None else _device(trace)


def _device(trace: Trace) -> Platform:
    return "cpu" if trace.platform == "cpu" else "gpu"


def _check_parallel(engine: EngineFacts | None, settings: Mapping[str, Any]) -> None:
    said = {
        "pipeline": (engine.pp if engine else None)
        or _at(settings, "parallel_config", "pipeline_parallel_size"),
        "decode context": (engine.dcp if engine else None)
        or _at(settings, "parallel_config", "decode_context_parallel_size"),
    }
    for name, size in said.items():
        if type(size) is int and size > 1:
            raise InputError(f"{size} {name} parallel ranks: kvtrace does not plan their split; {INSTEAD}")


def _check_layout(engine: EngineFacts | None, model: ModelLayers, skip: tuple[str, ...]) -> None:
    layout = engine.layout if engine else None
    kinds = {layer.kind for layer in model.layers}
    if layout and layout.startswith("B") and (len(kinds) > 1 or skip):
        raise InputError(
            f"layout {layout[:20]}: pages of several sizes are packed into each block, which kvtrace does "
            f"not plan; {INSTEAD}"
        )


def _at(settings: Mapping[str, Any], part: str, name: str) -> Any:
    found = settings.get(part)
    return found.get(name) if isinstance(found, dict) else None


def _first(*said: Any, default: bool) -> bool:
    return next((bool(one) for one in said if one is not None), default)
