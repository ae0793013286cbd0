"""Every name of vLLM that the plug-in touches, and where vLLM's sources have it.

One table: `tests/capture/test_vllm_names.py` reads the plug-in and fails on a name that is not here, or that
is here and no longer touched; `tests/capture/test_vllm_sources.py` looks all of them up in unpacked sources.
A place is `path.py:Class`, `path.py:function` or `path.py`, under the folder `vllm`; where releases differ
there are several, of which one must be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Owner:
    """A class, or several that share a role, and what the plug-in takes of it."""

    places: tuple[str, ...]
    attributes: tuple[str, ...]
    since: dict[str, str] = field(default_factory=dict)
    """Attributes that the plug-in asks for with a default → the first release that has them."""


_CONFIG: Final = "config/vllm.py:VllmConfig"
_BACKENDS: Final = "v1/attention/backends"

OWNERS: Final = {
    "VllmConfig": Owner(
        (_CONFIG,),
        (
            "attention_config",
            "cache_config",
            "compilation_config",
            "device_config",
            "instance_id",
            "kv_transfer_config",
            "lora_config",
            "model_config",
            "parallel_config",
            "scheduler_config",
            "shutdown_timeout",
            "speculative_config",
            "use_v2_model_runner",
        ),
    ),
    "KVTransferConfig": Owner(
        ("config/kv_transfer.py:KVTransferConfig",), ("engine_id", "kv_connector_extra_config")
    ),
    "ParallelConfig": Owner(
        ("config/parallel.py:ParallelConfig",),
        (
            "data_parallel_rank",
            "data_parallel_size",
            "decode_context_parallel_size",
            "enable_expert_parallel",
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "tensor_parallel_size",
            "use_ubatching",
        ),
    ),
    "SchedulerConfig": Owner(
        ("config/scheduler.py:SchedulerConfig",),
        (
            "async_scheduling",
            "disable_hybrid_kv_cache_manager",
            "enable_chunked_prefill",
            "max_num_batched_tokens",
            "max_num_seqs",
            "policy",
        ),
    ),
    "CacheConfig": Owner(
        ("config/cache.py:CacheConfig",),
        (
            "block_size",
            "cache_dtype",
            "enable_prefix_caching",
            "kv_cache_dtype_skip_layers",
            "kv_cache_layout",
            "num_gpu_blocks",
            "prefix_caching_hash_algo",
            "sliding_window",
        ),
    ),
    "CompilationConfig": Owner(
        ("config/compilation.py:CompilationConfig",),
        (
            "backend",
            "cudagraph_mode",
            "mode",
            "pass_config",
            "static_forward_context",
            "use_inductor_graph_partition",
        ),
    ),
    "PassConfig": Owner(
        ("config/compilation.py:PassConfig",),
        ("fuse_attn_quant", "fuse_qk_norm_rope_kvcache", "fuse_rope_kvcache"),
    ),
    "AttentionConfig": Owner(("config/attention.py:AttentionConfig",), ("backend", "flash_attn_version")),
    "SpeculativeConfig": Owner(
        ("config/speculative.py:SpeculativeConfig",), ("method", "model", "num_speculative_tokens")
    ),
    "LoRAConfig": Owner(("config/lora.py:LoRAConfig",), ("max_lora_rank", "max_loras")),
    "DeviceConfig": Owner(("config/device.py:DeviceConfig",), ("device_type",)),
    "ModelConfig": Owner(
        ("config/model.py:ModelConfig",),
        (
            "dtype",
            "enforce_eager",
            "generation_config",
            "get_diff_sampling_param",
            "get_head_size",
            "get_total_num_kv_heads",
            "hf_config",
            "hf_text_config",
            "max_logprobs",
            "max_model_len",
            "model",
            "override_generation_config",
            "quantization",
            "revision",
            "seed",
            "served_model_name",
            "tokenizer",
            "tokenizer_revision",
        ),
    ),
    "KVCacheConfig": Owner(("v1/kv_cache_interface.py:KVCacheConfig",), ("kv_cache_groups",)),
    "KVCacheGroupSpec": Owner(
        ("v1/kv_cache_interface.py:KVCacheGroupSpec",), ("kv_cache_spec", "layer_names")
    ),
    "KVCacheSpec": Owner(("v1/kv_cache_interface.py:KVCacheSpec",), ("block_size",)),
    "Attention": Owner(
        ("model_executor/layers/attention/attention.py:Attention",),
        (
            "_k_scale",
            "_k_scale_float",
            "_q_scale",
            "_v_scale",
            "_v_scale_float",
            "attn_backend",
            "attn_type",
            "dtype",
            "head_size",
            "head_size_v",
            "impl",
            "kv_cache_dtype",
            "kv_cache_update_bypass",
            "kv_sharing_target_layer_name",
            "is_draft_layer",
            "layer_name",
            "num_heads",
            "num_kv_heads",
            "query_quant",
            "quant_method",
            "sliding_window",
            "use_direct_call",
        ),
        since={"kv_cache_update_bypass": "0.33"},
    ),
    "AttentionBackend": Owner(
        ("v1/attention/backend.py:AttentionBackend",), ("forward_includes_kv_cache_update", "get_name")
    ),
    "AttentionImpl": Owner(
        (f"{_BACKENDS}/flash_attn.py:FlashAttentionImpl",),
        (
            "alibi_slopes",
            "do_kv_cache_update",
            "forward",
            "logits_soft_cap",
            "scale",
            "sinks",
            "supports_quant_query_input",
        ),
    ),
    "AttentionImpl of Triton": Owner(
        (f"{_BACKENDS}/triton_attn.py:TritonAttentionImpl",), ("chunk_lookback", "use_alibi_sqrt")
    ),
    "AttentionImpl of the CPU": Owner((f"{_BACKENDS}/cpu_attn.py:CPUAttentionBackendImpl",), ("isa",)),
    "GroupCoordinator": Owner(("distributed/parallel_state.py:GroupCoordinator",), ("rank_in_group",)),
    "Platform": Owner(
        ("platforms/interface.py:Platform",),
        ("device_name", "get_device_capability", "is_cpu", "is_cuda", "is_rocm", "is_tpu", "is_xpu"),
    ),
    "DeviceCapability": Owner(("platforms/interface.py:DeviceCapability",), ("major", "minor")),
    "envs": Owner(("envs.py",), ("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION",)),
    "SchedulerOutput": Owner(
        ("v1/core/sched/output.py:SchedulerOutput",),
        (
            "num_scheduled_tokens",
            "scheduled_cached_reqs",
            "scheduled_new_reqs",
            "scheduled_spec_decode_tokens",
        ),
    ),
    "NewRequestData": Owner(
        ("v1/core/sched/output.py:NewRequestData",), ("block_ids", "num_computed_tokens", "req_id")
    ),
    "CachedRequestData": Owner(
        ("v1/core/sched/output.py:CachedRequestData",),
        ("new_block_ids", "num_computed_tokens", "req_ids", "resumed_req_ids"),
    ),
    "Request": Owner(
        ("v1/request.py:Request",),
        (
            "get_finished_reason",
            "num_output_placeholders",
            "num_output_tokens",
            "num_preemptions",
            "num_prompt_tokens",
            "num_tokens",
            "prompt_token_ids",
            "request_id",
            "resumable",
            "sampling_params",
            "status",
        ),
    ),
    "SamplingParams": Owner(("sampling_params.py:SamplingParams",), ("extra_args",)),
    "KVConnectorRole": Owner(
        ("distributed/kv_transfer/kv_connector/v1/base.py:KVConnectorRole",), ("SCHEDULER",)
    ),
    "KVConnectorFactory": Owner(
        ("distributed/kv_transfer/kv_connector/factory.py:KVConnectorFactory",),
        ("_registry", "register_connector"),
    ),
    "LLM": Owner(
        ("entrypoints/llm.py:LLM",), ("chat", "collective_rpc", "generate", "get_tokenizer", "llm_engine")
    ),
    "LLMEngine": Owner(("v1/engine/llm_engine.py:LLMEngine",), ("engine_core", "model_config")),
    "EngineCoreClient": Owner(("v1/engine/core_client.py:EngineCoreClient",), ("shutdown",)),
    "RequestOutput": Owner(("outputs.py:RequestOutput",), ("outputs", "prompt_logprobs")),
    "CompletionOutput": Owner(("outputs.py:CompletionOutput",), ("logprobs", "text", "token_ids")),
    "Logprob": Owner(("logprobs.py:Logprob",), ("logprob", "rank")),
    "Worker": Owner(("v1/worker/gpu_worker.py:Worker",), ("model_runner", "vllm_config")),
    "ModelRunner": Owner(
        ("v1/worker/gpu_model_runner.py:GPUModelRunner", "v1/worker/gpu/model_runner.py:GPUModelRunner"),
        ("model",),
    ),
}
"""By what they are. A subclass is looked up with its bases."""

SECTIONS: Final = {
    "scheduler_config": "SchedulerConfig",
    "cache_config": "CacheConfig",
    "compilation_config": "CompilationConfig",
    "attention_config": "AttentionConfig",
    "speculative_config": "SpeculativeConfig",
    "parallel_config": "ParallelConfig",
    "model_config": "ModelConfig",
    "lora_config": "LoRAConfig",
}
"""Sections of a configuration from which `engine_facts` takes settings by name."""

IMPORTED: Final = (
    "vllm:",
    "vllm:LLM",
    "vllm:SamplingParams",
    "vllm:__version__",
    "vllm:envs",
    "vllm.distributed.kv_transfer:get_kv_transfer_group",
    "vllm.distributed.kv_transfer:has_kv_transfer_group",
    "vllm.distributed.kv_transfer.kv_connector.factory:",
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1",
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorMetadata",
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorRole",
    "vllm.distributed.kv_transfer.kv_connector.v1.base:SupportsHMA",
    "vllm.distributed.parallel_state:get_pp_group",
    "vllm.distributed.parallel_state:get_tp_group",
    "vllm.model_executor.layers.attention:Attention",
    "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase",
    "vllm.model_executor.layers.mamba.abstract:MambaBase",
    "vllm.platforms:current_platform",
)
"""`module:name`; `module:` is the module itself."""

OF_OTHERS: Final = frozenset(
    {
        # Python's, torch's and transformers' own types, in the hands of vLLM's objects.
        *("__name__", "__version__", "encode", "endswith", "extend", "get", "items", "name", "removesuffix"),
        *("value", "values", "detach", "flatten", "float", "tolist", "nbytes", "wait_stream"),
        *("named_modules", "register_forward_pre_hook"),
        *("apply_chat_template", "num_attention_heads", "num_hidden_layers", "to_dict"),
        # The plug-in's own connector, which comes back from vLLM.
        "watch_residual",
    }
)
