"""What the engine says of itself: model, settings, and every layer's effective scales.

It reads vLLM's objects by attribute and imports nothing of vllm; what a version lacks is left out.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch

from kvtrace.trace.attention_format import AttentionRecord
from kvtrace.trace.fingerprint import fingerprint_checkpoint
from kvtrace.trace.format import EngineRecord, LayerRecord, ModelRecord
from kvtrace_capture.vllm_versions import is_tried

_SETTINGS: Final = {
    "scheduler_config": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "async_scheduling",
        "policy",
        "disable_hybrid_kv_cache_manager",
    ),
    "cache_config": (
        "cache_dtype",
        "block_size",
        "num_gpu_blocks",
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "kv_cache_dtype_skip_layers",
        "kv_cache_layout",
        "sliding_window",
    ),
    "compilation_config": ("mode", "cudagraph_mode", "backend", "use_inductor_graph_partition"),
    "attention_config": ("backend", "flash_attn_version"),
    "speculative_config": ("method", "num_speculative_tokens", "model"),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "enable_expert_parallel",
    ),
    "model_config": (
        "quantization",
        "enforce_eager",
        "seed",
        "generation_config",
        "override_generation_config",
        "max_logprobs",
    ),
    "lora_config": ("max_lora_rank", "max_loras"),
}

_OTHER_LOGITS: Final = ("alibi_slopes", "use_alibi_sqrt", "chunk_lookback", "attention_chunk_size")
"""What backends may add to logits or mask of them beyond scale, window, soft cap and sinks."""


def model_record(vllm_config: Any) -> ModelRecord:
    """Return the model as loaded, with digests of its checkpoint where that is a readable folder."""
    config = vllm_config.model_config
    folder = _checkpoint_folder(config.model, config.revision)
    tokenizer = _checkpoint_folder(config.tokenizer or config.model, config.tokenizer_revision)
    prints = fingerprint_checkpoint(folder) if folder else None
    tokenizer_prints = fingerprint_checkpoint(tokenizer) if tokenizer and tokenizer != folder else prints
    return ModelRecord(
        name=_served_name(config),
        revision=config.revision,
        tokenizer_revision=config.tokenizer_revision,
        weights_digest=prints.weights if prints else None,
        tokenizer_digest=tokenizer_prints.tokenizer if tokenizer_prints else None,
        chat_template_digest=tokenizer_prints.chat_template if tokenizer_prints else None,
        dtype=stored_dtype(config.dtype),
        num_layers=config.hf_text_config.num_hidden_layers,
        num_attention_heads=config.hf_text_config.num_attention_heads,
        num_kv_heads=config.get_total_num_kv_heads(),
        head_dim=config.get_head_size(),
        max_model_len=config.max_model_len,
        hf_config=_plain(config.hf_config.to_dict()),
    )


def _served_name(config: Any) -> str:
    """Return the name that clients use, where the operator gave one: a path says little on another host."""
    served = getattr(config, "served_model_name", None)
    return str(served[0] if isinstance(served, list | tuple) and served else served or config.model)


def engine_record(vllm_config: Any, version: str, platform: Any) -> EngineRecord:
    """Return the engine and the settings that shape what it writes to its cache.

    platform: vLLM's `current_platform`.
    """
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    settings: dict[str, Any] = {}
    for section, names in _SETTINGS.items():
        config = getattr(vllm_config, section, None)
        if config is not None:
            settings[section] = {n: _plain(getattr(config, n)) for n in names if hasattr(config, n)}
    settings["tried_with_kvtrace"] = is_tried(version, vllm_config.device_config.device_type)
    settings["v2_model_runner"] = _plain(getattr(vllm_config, "use_v2_model_runner", None))
    if hasattr(vllm_config.model_config, "get_diff_sampling_param"):
        settings["default_sampling_params"] = _plain(vllm_config.model_config.get_diff_sampling_param())
    return EngineRecord(
        name="vllm",
        version=version,
        torch_version=torch.__version__,
        kvtrace_version=importlib.metadata.version("kvtrace"),
        platform=_platform_name(platform),
        device=_device_name(vllm_config.device_config.device_type),
        compute_capability=_compute_capability(platform),
        kv_cache_dtype=str(cache.cache_dtype),
        block_size=cache.block_size,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        data_parallel_rank=parallel.data_parallel_rank,
        settings=settings,
    )


def layer_record(
    layer: Any,
    *,
    index: int,
    kv_heads: tuple[int, ...],
    block_size: int,
    captured: bool,
    kv_cache: torch.Tensor | None,
    attention: AttentionRecord | None = None,
) -> LayerRecord:
    """Return one attention layer with the scales that its cache writes use."""
    return LayerRecord(
        index=index,
        name=layer.layer_name,
        captured=captured,
        kv_heads=kv_heads,
        head_dim_k=layer.head_size,
        head_dim_v=layer.head_size_v,
        dtype=stored_dtype(layer.dtype),
        backend=layer.attn_backend.get_name(),
        implementation=type(layer.impl).__name__,
        kv_cache_dtype=str(layer.kv_cache_dtype),
        block_size=block_size,
        sliding_window=layer.sliding_window,
        k_scale=_effective_scale(layer, "k", len(kv_heads)),
        v_scale=_effective_scale(layer, "v", len(kv_heads)),
        q_scale=tuple(layer._q_scale.flatten().tolist()),
        attention=attention,
        details={
            "k_scale_tensor": layer._k_scale.flatten().tolist(),
            "v_scale_tensor": layer._v_scale.flatten().tolist(),
            "k_scale_float": _plain(getattr(layer, "_k_scale_float", None)),
            "v_scale_float": _plain(getattr(layer, "_v_scale_float", None)),
            "quant_method": type(layer.quant_method).__name__ if hasattr(layer, "quant_method") else None,
            "isa": getattr(layer, "isa", None),
            "num_query_heads": layer.num_heads,
            "cache_shape": list(kv_cache.shape) if kv_cache is not None else None,
            "cache_stride": list(kv_cache.stride()) if kv_cache is not None else None,
            "cache_dtype": str(kv_cache.dtype) if kv_cache is not None else None,
        },
    )


def attention_record(
    layer: Any, *, query_heads: tuple[int, ...], kv_head_of: tuple[int, ...]
) -> AttentionRecord:
    """Return how one attention layer makes its output, as its backend's implementation holds it.

    query_heads: global ids of this rank's query heads, in order. kv_head_of: the KV head that each reads.
    Raises AttributeError: the implementation does not say how it scales its logits.
    """
    impl = layer.impl
    sinks = getattr(impl, "sinks", None)
    return AttentionRecord(
        query_heads=query_heads,
        kv_head_of=kv_head_of,
        softmax_scale=float(impl.scale),
        soft_cap=float(getattr(impl, "logits_soft_cap", None) or 0.0) or None,
        sinks=None if sinks is None else tuple(sinks.detach().float().flatten().tolist()),
        query_is_fp8=query_comes_in_fp8(layer),
        not_replayable=tuple(name for name in _OTHER_LOGITS if _is_set(getattr(impl, name, None))),
    )


def query_comes_in_fp8(layer: Any) -> bool:
    """Return whether a layer rounds its queries to FP8 before its backend sees them (`Attention.forward`)."""
    return getattr(layer, "query_quant", None) is not None and bool(
        getattr(layer.impl, "supports_quant_query_input", False)
    )


def _is_set(value: Any) -> bool:
    """Return whether an option of a backend is in use: a tensor, True, or a number above 0."""
    return value is not None and (not isinstance(value, bool | int | float) or value > 0)


def stored_dtype(dtype: torch.dtype) -> Literal["bfloat16", "float16", "float32"]:
    """Return a torch dtype by the name it has in a trace. Raises ValueError for one that no trace holds."""
    name = str(dtype).removeprefix("torch.")
    if name not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"kvtrace stores bfloat16, float16 and float32; the model's dtype is {name}")
    return cast("Literal['bfloat16', 'float16', 'float32']", name)


def _effective_scale(layer: Any, tensor: str, num_kv_heads: int) -> tuple[float, ...]:
    """Return one scale for the layer, or one a head.

    vLLM's CPU backend writes with the float (v1/attention/backends/cpu_attn.py, do_kv_cache_update); the GPU
    backends pass the tensor.
    """
    if layer.attn_backend.get_name() == "CPU_ATTN":
        return (float(getattr(layer, f"_{tensor}_scale_float")),)
    scales = tuple(float(s) for s in getattr(layer, f"_{tensor}_scale").flatten().tolist())
    if len(scales) not in (1, num_kv_heads):
        raise ValueError(f"{layer.layer_name} has {len(scales)} {tensor} scales for {num_kv_heads} KV heads")
    return scales


def _checkpoint_folder(model: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        return Path(model)
    try:
        hub = importlib.import_module("huggingface_hub")
        return Path(hub.snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # noqa: BLE001 -- a digest is worth having, and never worth a failed start
        return None


def _platform_name(platform: Any) -> str | None:
    """Return vLLM's name of the platform. A plug-in's (Gaudi's `hpu`) answers to none of the questions."""
    for name in ("cuda", "rocm", "cpu", "xpu", "tpu"):
        if getattr(platform, f"is_{name}", bool)():
            return name
    return getattr(platform, "device_name", None) or None


def _compute_capability(platform: Any) -> str | None:
    capability = platform.get_device_capability()
    return None if capability is None else f"{capability.major}.{capability.minor}"


def _device_name(device_type: str) -> str:
    return torch.cuda.get_device_name() if device_type == "cuda" else device_type


def _plain(value: Any) -> Any:
    """Return the value as JSON holds it: enums by name, what JSON does not know by its text."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_plain(v) for v in ordered]
    if hasattr(value, "name") and hasattr(value, "value"):
        return value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if json.dumps(value) not in ("NaN", "Infinity", "-Infinity") else str(value)
    return str(value)
