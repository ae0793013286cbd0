"""Models and servings whose KV cache vLLM plans, as small as they can be; no library is needed to read them.

`plans.json` and `pages.json` of tests/capacity hold what vLLM makes of them; `make capacity-cases` writes
them anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}


@dataclass(frozen=True)
class Case:
    """One model served in one way."""

    name: str
    architecture: str
    model_type: str
    config: dict[str, Any]
    serving: dict[str, Any] = field(default_factory=dict)
    """Of `kvtrace.capacity.serving.Serving`, as far as it differs from SERVING."""
    budget: int = 64 * MIB
    own_draft: bool = False

    @property
    def full_config(self) -> dict[str, Any]:
        """Return the config.json."""
        return {"architectures": [self.architecture], "model_type": self.model_type} | SHAPE | self.config

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Return vLLM's arguments for random weights; the cache dtype is not among them."""
        settings = self.settings
        return {
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "enforce_eager": True,
            "max_model_len": settings["max_model_len"],
            "max_num_batched_tokens": settings["max_num_batched_tokens"],
            "max_num_seqs": 64,
            "block_size": settings["block_size"],
            "enable_prefix_caching": settings["prefix_caching"],
            "disable_hybrid_kv_cache_manager": None if settings["hybrid_manager"] else True,
            "num_gpu_blocks_override": settings["num_blocks"],
            "kv_cache_memory_bytes": self.budget,
            "tensor_parallel_size": settings["tp"],
            "distributed_executor_backend": "mp" if settings["tp"] > 1 else None,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Return all settings."""
        return SERVING | self.serving


SERVING: dict[str, Any] = {
    "max_model_len": 512,
    "cache_dtype": "auto",
    "skip_layers": (),
    "tp": 1,
    "block_size": None,
    "max_num_batched_tokens": 128,
    "platform": "cpu",
    "backend": None,
    "prefix_caching": False,
    "hybrid_manager": True,
    "num_blocks": None,
}


def _llama(name: str, layers: int = 5, budget: int = 64 * MIB, **serving: Any) -> Case:
    config = {"num_hidden_layers": layers}
    heads = serving.pop("kv_heads", None)
    head_dim = serving.pop("head_dim", None)
    if heads:
        config |= {"num_key_value_heads": heads}
    if head_dim:
        config |= {"head_dim": head_dim, "hidden_size": 4 * head_dim}
    return Case(name, "LlamaForCausalLM", "llama", config, serving, budget)


def _windows(name: str, sliding: int, full: int, **serving: Any) -> Case:
    kinds = ["sliding_attention"] * sliding + ["full_attention"] * full
    config = {"num_hidden_layers": sliding + full, "layer_types": kinds, "sliding_window": 64}
    config |= serving.pop("config", {})
    return Case(name, "Gemma3ForCausalLM", "gemma3_text", config, serving)


LATENT = {
    "num_hidden_layers": 3,
    "kv_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "q_lora_rank": None,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "moe_intermediate_size": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_key_value_heads": 4,
}
LATENT_512 = LATENT | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
CONVOLUTIONS = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "hidden_size": 1024,
    "conv_dim": 1024,
    "block_dim": 1024,
    "conv_L_cache": 4,
    "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 256,
    "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "num_attention_heads": 32,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def _latent(name: str, config: dict[str, Any] = LATENT, **serving: Any) -> Case:
    return Case(name, "DeepseekV2ForCausalLM", "deepseek_v2", config, serving)


def _convolutions(name: str, **serving: Any) -> Case:
    return Case(name, "Lfm2ForCausalLM", "lfm2", CONVOLUTIONS, {"block_size": 32} | serving)


OF_THE_SPEC = (
    _llama("full"),
    _llama("full fp8", cache_dtype="fp8"),
    _llama("full fp8, two layers native", cache_dtype="fp8", skip_layers=("0", "4")),
    _llama("full, blocks of 32, 500 tokens", block_size=32, max_model_len=500),
    _llama("full, 40 blocks", num_blocks=40),
    _windows("7 windows + 1", 7, 1),
    _windows("7 windows + 1, fp8", 7, 1, cache_dtype="fp8"),
    _windows("7 windows + 1, fp8, windows native", 7, 1, cache_dtype="fp8", skip_layers=("sliding_window",)),
    _windows("7 windows + 1, no hybrid manager", 7, 1, hybrid_manager=False),
    _windows("7 windows + 6", 7, 6),
    _latent("latent"),
    _convolutions("2 convolutions + 2"),
    _convolutions("2 convolutions + 2, fp8", cache_dtype="fp8"),
    _llama("1 KV head, 2 ranks", kv_heads=1, tp=2),
)
"""The reference table: 14 servings on a CPU, each seen once in an engine."""

GPU: dict[str, Any] = {"platform": "gpu"}
QUANTIZED = (
    "fp8",
    "fp8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_3bit_nc",
)

ON_A_GPU = (
    _llama("gpu full", **GPU),
    *(_llama(f"gpu full {name}", 8, cache_dtype=name, **GPU) for name in QUANTIZED),
    *(
        _llama(f"gpu full {name}, layer 0 native", 8, cache_dtype=name, skip_layers=("0",), **GPU)
        for name in QUANTIZED
    ),
    *(
        _llama(f"gpu full {name}, layer 3 native", 8, cache_dtype=name, skip_layers=("3",), **GPU)
        for name in QUANTIZED[:4]
    ),
    *(
        _llama(
            f"gpu full turboquant_4bit_nc, heads of {head_dim}",
            8,
            head_dim=head_dim,
            cache_dtype="turboquant_4bit_nc",
            **GPU,
        )
        for head_dim in (128, 256)
    ),
    *(_windows(f"gpu windows {name}", 7, 1, cache_dtype=name, **GPU) for name in QUANTIZED[:4]),
    *(
        _windows(
            f"gpu windows {name}, windows native",
            7,
            1,
            cache_dtype=name,
            skip_layers=("sliding_window",),
            **GPU,
        )
        for name in QUANTIZED[:4]
    ),
    _windows("gpu windows fp8, the full layer native", 7, 1, cache_dtype="fp8", skip_layers=("7",), **GPU),
    _windows("gpu windows in blocks of 64", 5, 3, cache_dtype="fp8", block_size=64, **GPU),
    _latent("gpu latent", LATENT_512, **GPU),
    _latent("gpu latent fp8", LATENT_512, cache_dtype="fp8", **GPU),
    _latent("gpu latent fp8, layer 0 native", LATENT_512, cache_dtype="fp8", skip_layers=("0",), **GPU),
    _convolutions("gpu convolutions", **GPU),
    _convolutions("gpu convolutions, prefix caching", prefix_caching=True, **GPU),
    _convolutions("gpu convolutions fp8, prefix caching", prefix_caching=True, cache_dtype="fp8", **GPU),
    _convolutions("gpu convolutions fp8, layer 1 native", cache_dtype="fp8", skip_layers=("1",), **GPU),
    _llama("gpu 1 KV head, 4 ranks, fp8", kv_heads=1, tp=4, cache_dtype="fp8", **GPU),
)
"""What no CPU runs: vLLM's planning alone, with the backends that a GPU would have."""

LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
MAMBA2 = {
    "mamba_expand": 2,
    "mamba_n_heads": 16,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 32,
}
WINDOW = {"sliding_window": 64}


def _family(
    model_type: str, architecture: str, config: dict[str, Any], suffix: str = "", **more: Any
) -> Case:
    layers = {"num_hidden_layers": 4}
    return Case(f"family {model_type}{suffix}", architecture, model_type, layers | config, more)


FAMILIES = (
    _family("mistral", "MistralForCausalLM", WINDOW),
    _family("mixtral", "MixtralForCausalLM", EXPERTS | WINDOW),
    _family("qwen2", "Qwen2ForCausalLM", WINDOW | {"use_sliding_window": False}),
    _family(
        "qwen2",
        "Qwen2ForCausalLM",
        WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
        " with windows",
    ),
    _family("qwen3", "Qwen3ForCausalLM", {}),
    _family("qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []}),
    _family("gemma2", "Gemma2ForCausalLM", WINDOW | {"query_pre_attn_scalar": 32}),
    _family("gemma3_text", "Gemma3ForCausalLM", WINDOW | {"num_hidden_layers": 7}),
    _family(
        "gemma3n_text",
        "Gemma3nForCausalLM",
        WINDOW
        | {
            "num_hidden_layers": 10,
            "num_kv_shared_layers": 4,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
            "intermediate_size": [256] * 10,
            "activation_sparsity_pattern": [0.0] * 10,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 32,
        },
    ),
    _family(
        "gemma4_text",
        "Gemma4ForCausalLM",
        WINDOW
        | {
            "num_hidden_layers": 6,
            "global_head_dim": 128,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 0,
        },
    ),
    _family("phi3", "Phi3ForCausalLM", WINDOW | {"pad_token_id": 0}),
    _family("granite", "GraniteForCausalLM", {}),
    _family(
        "gpt_oss",
        "GptOssForCausalLM",
        EXPERTS
        | WINDOW
        | {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            }
        },
    ),
    _family(
        "llama4_text",
        "Llama4ForCausalLM",
        EXPERTS
        | {
            "attention_chunk_size": 64,
            "no_rope_layers": [1, 1, 1, 0],
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 256,
        },
    ),
    _family("cohere2", "Cohere2ForCausalLM", WINDOW | {"sliding_window_pattern": 4, "layer_norm_eps": 1e-5}),
    _family("olmo3", "Olmo3ForCausalLM", WINDOW),
    _family("exaone4", "Exaone4ForCausalLM", WINDOW | {"sliding_window_pattern": 4}),
    _family("smollm3", "SmolLM3ForCausalLM", {"pad_token_id": 0}),
    _family(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        EXPERTS
        | {
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "partial_rotary_factor": 0.5,
        },
    ),
    _family(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        EXPERTS | {"rotary_dim": 16, "use_qk_norm": True, "scoring_func": "sigmoid"},
    ),
    _family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        EXPERTS
        | LINEAR
        | {
            "full_attention_interval": 4,
            "shared_expert_intermediate_size": 64,
            "decoder_sparse_step": 1,
            "partial_rotary_factor": 0.25,
        },
    ),
    _family(
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            "hybrid_override_pattern": "M*M-",
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "expand": 1,
            "chunk_size": 32,
        },
    ),
    _family(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        EXPERTS
        | MAMBA2
        | {
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
            "shared_intermediate_size": 64,
            "position_embedding_type": "nope",
        },
    ),
    _family(
        "jamba",
        "JambaForCausalLM",
        {
            "mamba_expand": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_dt_rank": 8,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    _family(
        "falcon_h1",
        "FalconH1ForCausalLM",
        MAMBA2
        | {
            "mamba_d_ssm": 256,
            "mamba_n_heads": 8,
            "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0],
            "mlp_multipliers": [1.0, 1.0],
            "key_multiplier": 1.0,
        },
    ),
    _family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        LATENT | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    ),
)
"""One tiny model of each family whose layers kvtrace knows, on a CPU."""

CASES = (*OF_THE_SPEC, *ON_A_GPU, *FAMILIES)
ENGINE_CASES = tuple(case for case in OF_THE_SPEC if case.settings["cache_dtype"] == "auto")
"""Those that an engine runs on any CPU: vLLM keeps an FP8 cache on AVX-512 and AMX alone."""
