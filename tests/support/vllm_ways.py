"""How vLLM calls what the plug-in hooks and gives it, and the planning that `kvtrace.capacity` repeats.

Places are those of `vllm_names`; where releases differ there are several, of which one must be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Function:
    """A function, and its parameters in order without `self`."""

    places: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Calls:
    """A function that calls something of this name, with so many positional arguments and these named."""

    place: str
    called: str
    positional: int
    named: tuple[str, ...] = ()


BASES: Final = (
    "distributed/kv_transfer/kv_connector/v1/base.py:KVConnectorBase_V1",
    "distributed/kv_transfer/kv_connector/v1/base.py:SupportsHMA",
)
OWN_METHODS: Final = ("watch_residual",)
"""Public methods of the connector that its bases do not have."""

_ATTENTION: Final = "model_executor/layers/attention/attention.py"
_PLANNING: Final = ("v1/core/kv_cache_planning.py", "v1/core/kv_cache_utils.py")
_LAYER: Final = "distributed/kv_transfer/kv_connector/v1/base.py"

UPDATE: Final = ("layer", "key", "value", "kv_cache", "slot_mapping")
WRITING_BACKENDS: Final = (
    "cpu_attn.py:CPUAttentionBackendImpl",
    "flash_attn.py:FlashAttentionImpl",
    "flashinfer.py:FlashInferImpl",
    "flex_attention.py:FlexAttentionImpl",
    "triton_attn.py:TritonAttentionImpl",
    "rocm_attn.py:RocmAttentionImpl",
    "rocm_aiter_fa.py:AiterFlashAttentionImpl",
    "rocm_aiter_unified_attn.py:RocmAiterUnifiedAttentionImpl",
    "turboquant_attn.py:TurboQuantAttentionImpl",
)
"""Of `v1/attention/backends`: their `do_kv_cache_update` takes UPDATE, so the plug-in hooks it."""

FUNCTIONS: Final = (
    Function((f"{_ATTENTION}:Attention.forward",), ("query", "key", "value", "output_shape", "output_dtype")),
    Function((f"{_ATTENTION}:unified_kv_cache_update",), ("key", "value", "layer_name")),
    Function((f"{_LAYER}:KVConnectorBase_V1.__init__",), ("vllm_config", "role", "kv_cache_config")),
    Function(
        ("distributed/kv_transfer/kv_connector/factory.py:KVConnectorFactory.register_connector",),
        ("name", "module_path", "class_name"),
    ),
    Function(("v1/engine/core_client.py:EngineCoreClient.shutdown",), ("timeout",)),
    # What kvtrace.capacity repeats:
    *(
        Function(tuple(f"{path}:{name}" for path in _PLANNING), parameters)
        for name, parameters in {
            "get_kv_cache_groups": ("vllm_config", "kv_cache_spec"),
            "unify_kv_cache_spec_page_size": ("kv_cache_spec",),
            "_get_kv_cache_groups_uniform_page_size": ("kv_cache_spec",),
            "_promote_local_kv_cache_specs": ("kv_cache_spec",),
            "get_uniform_page_size": ("kv_cache_specs",),
        }.items()
    ),
    Function(("platforms/interface.py:Platform._align_hybrid_block_size",), ("vllm_config", "backend_cls")),
    Function(
        ("platforms/interface.py:Platform._align_heterogeneous_kv_block_size",),
        ("vllm_config", "backend_cls"),
    ),
    Function(
        ("platforms/interface.py:Platform._preferred_block_size_for_backends",),
        ("backend_classes", "default_block_size", "vllm_config"),
    ),
    Function(
        ("v1/attention/backend.py:AttentionBackend.get_supported_kernel_block_sizes",), ("kv_cache_spec",)
    ),
    Function(("v1/attention/backend.py:AttentionBackend.get_preferred_block_size",), ("default_block_size",)),
    Function(("config/vllm.py:VllmConfig.max_in_flight_tokens",), ()),
    Function((f"{_ATTENTION}:Attention.get_kv_cache_spec",), ("vllm_config",)),
    Function(
        ("model_executor/layers/attention/mla_attention.py:MLAAttention.get_kv_cache_spec",),
        ("vllm_config",),
    ),
    Function(
        (
            "model_executor/layers/quantization/turboquant/config.py:"
            "TurboQuantConfig.get_boundary_skip_layers",
        ),
        ("model_config", "n"),
    ),
)

_V1: Final = "v1/worker/kv_connector_model_runner_mixin.py:KVConnectorModelRunnerMixin"
_V2: Final = "v1/worker/gpu/kv_connector.py:ActiveKVConnector"
_SCHEDULER: Final = "v1/core/sched/scheduler.py:Scheduler"

CALLS: Final = (
    # Both paths of a layer come to one function, and that looks the hooked name up when it is called.
    Calls(f"{_ATTENTION}:Attention.forward", "unified_kv_cache_update", 3),
    Calls(f"{_ATTENTION}:unified_kv_cache_update", "do_kv_cache_update", 5),
    Calls(
        f"{_ATTENTION}:unified_attention_with_output",
        "forward",
        6,
        ("output", "output_scale", "output_block_scale"),
    ),
    # The V1 runner.
    Calls("v1/worker/gpu_model_runner.py:GPUModelRunner", "register_kv_caches", 1),
    Calls(f"{_V1}._get_kv_connector_output", "bind_connector_metadata", 1),
    Calls(f"{_V1}._get_kv_connector_output", "wait_for_save", 0),
    Calls(f"{_V1}._get_kv_connector_output", "clear_connector_metadata", 0),
    Calls(f"{_V1}.finalize_kv_connector", "wait_for_save", 0),
    # The V2 runner.
    Calls("v1/worker/gpu/model_runner.py:GPUModelRunner", "get_kv_connector", 2),
    Calls(f"{_V2}.__init__", "register_kv_caches", 1),
    Calls(f"{_V2}.pre_forward", "bind_connector_metadata", 1),
    Calls(f"{_V2}.post_forward", "wait_for_save", 0),
    Calls(f"{_V2}.post_forward", "clear_connector_metadata", 0),
    # The scheduler.
    Calls(_SCHEDULER, "on_new_request", 1),
    Calls(_SCHEDULER, "get_num_new_matched_tokens", 2),
    Calls(_SCHEDULER, "update_state_after_alloc", 3),
    Calls(_SCHEDULER, "build_connector_meta", 1),
    Calls(_SCHEDULER, "request_finished", 2),
    Calls(_SCHEDULER, "request_finished_all_groups", 2),
)

SINCE: Final = {
    "0.33": (Calls(f"{_V2}.finalize_step", "wait_for_save", 0),),
}
"""Ways that there are from a release on."""
