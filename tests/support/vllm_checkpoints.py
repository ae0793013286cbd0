"""Checkpoints for real engines: FP8 KV scales beside a model's weights; attention without K and V."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

FP8_MAX = 448.0


def add_kv_scales(
    model: Path, to: Path, k_absmax: NDArray[np.float64], v_absmax: NDArray[np.float64]
) -> None:
    """Write `model` with a static scale a layer for K and for V, absmax / 448 in bf16; link its weights.

    k_absmax, v_absmax: [layer]. The layout is compressed-tensors' with only a `kv_cache_scheme`.
    """
    import torch  # here, because pytest reads this file where no torch is installed
    from safetensors.torch import save_file

    to.mkdir(parents=True)
    for file in model.iterdir():
        if file.name != "config.json":
            (to / file.name).symlink_to(file)
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {},
        "kv_cache_scheme": scheme,
    }
    (to / "config.json").write_text(json.dumps(config))
    scales = {
        f"model.layers.{layer}.self_attn.{tensor}_scale": torch.tensor(
            [absmax / FP8_MAX], dtype=torch.bfloat16
        )
        for tensor, absmaxes in (("k", k_absmax), ("v", v_absmax))
        for layer, absmax in enumerate(absmaxes.tolist())
    }
    save_file(scales, to / "kv-scales.safetensors", metadata={"format": "pt"})


def write_tiny_model(to: Path, kind: str, *, num_kv_heads: int = 2) -> None:
    """Write a tiny bf16 model of random weights.

    kind: "llama"; "gemma3" with sliding-window and full layers; "lfm2", a hybrid with convolutions around one
    layer of attention.
    """
    import torch
    from transformers import Gemma3TextConfig, Lfm2Config, Lfm2ForCausalLM, LlamaConfig, set_seed
    from transformers.models.gemma3 import Gemma3ForCausalLM
    from transformers.models.llama import LlamaForCausalLM

    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 32,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
    }
    set_seed(0)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, **shape))
    elif kind == "lfm2":
        kinds = ["conv", "full_attention", "conv", "full_attention"]
        sizes = {"conv_dim": 128, "block_dim": 128, "block_auto_adjust_ff_dim": False}
        # vLLM 0.32's CPU operator turns this model's heads after the first by another position's angles.
        shape |= {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 128}
        model = Lfm2ForCausalLM(Lfm2Config(num_hidden_layers=4, layer_types=kinds, **sizes, **shape))
    else:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        model = Gemma3ForCausalLM(
            Gemma3TextConfig(num_hidden_layers=3, layer_types=kinds, sliding_window=64, **shape)
        )
    model.to(torch.bfloat16).save_pretrained(to)


def write_tiny_eagle(to: Path, target: Path) -> None:
    """Write an EAGLE head for a tiny Llama: its first layer and its embeddings under a random projection."""
    import torch
    from safetensors.torch import load_file, save_file

    to.mkdir(parents=True)
    config = json.loads((target / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    weights = load_file(target / "model.safetensors")
    layer = {
        name.removeprefix("model."): weight
        for name, weight in weights.items()
        if name.startswith("model.layers.0.") and "input_layernorm" not in name
    }
    size = config["hidden_size"]
    random = torch.Generator().manual_seed(1)
    projection = (0.02 * torch.randn(size, 2 * size, generator=random)).to(torch.bfloat16)
    embedding = weights["model.embed_tokens.weight"]
    save_file(
        {**layer, "embed_tokens.weight": embedding, "fc.weight": projection},
        to / "model.safetensors",
        metadata={"format": "pt"},
    )


def write_tiny_mla_model(to: Path) -> None:
    """Write the configuration of a tiny DeepSeek-V2, whose cache holds latents and no K and V per head."""
    to.mkdir(parents=True)
    config = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 2,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (to / "config.json").write_text(json.dumps(config))
