"""The command that serves a checkpoint as the captured engine served its own, with capture on or off."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.capture.flags import SHUTDOWN_TIMEOUT_S
from kvtrace.capture.options import CaptureOptions
from kvtrace.trace.cache_layers import text_config

if TYPE_CHECKING:
    from kvtrace.trace.format import EngineRecord, ModelRecord


def serve_command(
    checkpoint: str,
    cache_dtype: str,
    model: ModelRecord,
    engine: EngineRecord,
    *,
    capture_into: str | None = None,
) -> str:
    """Return one line for a shell.

    cache_dtype: said by name, since the engine's default follows the checkpoint. model, engine: of the trace,
    whose ranks, length and unquantized layers are kept. capture_into: folder for traces; None: no capture.
    """
    words = ["vllm", "serve", checkpoint, "--kv-cache-dtype", cache_dtype]
    if engine.tensor_parallel_size > 1:
        words += ["--tensor-parallel-size", str(engine.tensor_parallel_size)]
    if model.max_model_len and model.max_model_len != _longest(model):
        words += ["--max-model-len", str(model.max_model_len)]
    if cache_dtype.startswith("fp8") and (layers := _skipped_layers(engine)):
        words += ["--kv-cache-dtype-skip-layers", *layers]
    if capture_into is not None:
        config = CaptureOptions(Path(capture_into)).kv_transfer_config()
        words += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S), "--kv-transfer-config", json.dumps(config)]
    return shlex.join(words)


def _longest(model: ModelRecord) -> object:
    """Return the positions that an engine takes where nobody limits them; None: not recorded."""
    return text_config(model.hf_config).get("max_position_embeddings")


def _skipped_layers(engine: EngineRecord) -> list[str]:
    cache = engine.settings.get("cache_config")
    layers = cache.get("kv_cache_dtype_skip_layers") if isinstance(cache, dict) else None
    return (
        [str(layer) for layer in layers if isinstance(layer, int | str)] if isinstance(layers, list) else []
    )
