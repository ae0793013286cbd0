"""Checkpoints alone: what `kvtrace scales` says of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from support.checkpoints import checkpoint, scheme

from checkpoint_cases.case import Answer, Case, audited

if TYPE_CHECKING:
    from pathlib import Path

COMPRESSED = {
    "quant_method": "compressed-tensors",
    "kv_cache_scheme": scheme(),
    "config_groups": {},
    "ignore": ["lm_head"],
}
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.43.0"},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
QWEN35 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "full_attention_interval": 4,
        "mtp_num_hidden_layers": 1,
        "layer_types": [("full" if n % 4 == 3 else "linear") + "_attention" for n in range(64)],
    },
    "vision_config": {"depth": 27, "hidden_size": 1152},
}
ATTENDING = list(range(3, 64, 4))
HEALTHY = {"findings": [], "tensors": "kv", "number_format": "fp8"}


def _projections(prefix: str, scales: dict[int, tuple[float, float]]) -> dict[str, float]:
    return {
        f"{prefix}.{n}.self_attn.{tensor}_proj.{tensor}_scale": value
        for n, pair in scales.items()
        for tensor, value in zip("kv", pair, strict=True)
    }


def _attention(prefix: str, scales: dict[int, tuple[float, float]]) -> dict[str, list[float]]:
    return {
        f"{prefix}.{n}.self_attn.{tensor}_scale": [value]
        for n, pair in scales.items()
        for tensor, value in zip("kv", pair, strict=True)
    }


def _hybrid(directory: Path) -> Answer:
    scales = {n: (0.03 + n / 10_000, 0.12 + n / 1_000) for n in ATTENDING}
    tensors = _projections("model.language_model.layers", scales)
    path = checkpoint(directory, tensors, model=QWEN35, quantization=MODELOPT)
    return audited(path, (3, "k"), (63, "v"))


def _draft_head(directory: Path) -> Answer:
    tensors = _projections("model.language_model.layers", dict.fromkeys(ATTENDING, (0.03, 0.12)))
    tensors |= _projections("mtp.layers", {0: (0.9, 0.8)})
    path = checkpoint(directory, tensors, model=QWEN35, quantization=MODELOPT)
    return audited(path, (0, "k"), (3, "k"))


def _draft_layer_past_the_last(directory: Path) -> Answer:
    model = LLAMA | {"model_type": "glm4_moe", "num_hidden_layers": 8, "num_nextn_predict_layers": 1}
    tensors = _attention("model.layers", {n: (0.03 + n / 1_000, 0.01 + n / 1_000) for n in range(9)})
    return audited(checkpoint(directory, tensors, model=model, quantization=COMPRESSED), (7, "k"))


def _larger_vision_tower(directory: Path) -> Answer:
    model = {
        "model_type": "paligemma",
        "text_config": {
            "model_type": "gemma",
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
        },
        "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16},
    }
    tensors = _attention("language_model.model.layers", dict.fromkeys(range(18), (0.02, 0.005)))
    tower = "vision_tower.vision_model.encoder.layers"
    tensors |= _attention(tower, dict.fromkeys(range(27), (0.2, 0.3)))
    return audited(checkpoint(directory, tensors, model=model, quantization=COMPRESSED), (0, "k"), (17, "v"))


def _tensorrt_int8(directory: Path) -> Answer:
    model = LLAMA | {
        "architecture": "LlamaForCausalLM",
        "quantization": {"quant_algo": "W8A16", "kv_cache_quant_algo": "INT8"},
    }
    tensors = {
        f"transformer.layers.{n}.attention.kv_cache_scaling_factor": [(14.0 + n) / 127] for n in range(4)
    }
    return audited(checkpoint(directory, tensors, model=model, file="rank0.safetensors"), (0, "k"))


def _ascend_c8(directory: Path) -> Answer:
    tensors: dict[str, Any] = {
        f"model.layers.{n}.self_attn.{t}_proj.kv_cache_{what}": torch.full((1024,), value)
        for n in range(4)
        for t in "kv"
        for what, value in (("scale", 0.1), ("offset", 0.0))
    }
    tensors |= {f"model.layers.{n}.self_attn.k_proj.weight": torch.zeros(2, 2) for n in range(4)}
    path = checkpoint(directory, tensors, model=LLAMA)
    (path / "quant_model_description.json").write_text(
        json.dumps({"model_quant_type": "W8A8", "kv_cache_type": "C8"} | dict.fromkeys(tensors, "C8"))
    )
    return audited(path)


def _mistral_native(directory: Path) -> Answer:
    directory.mkdir(parents=True, exist_ok=True)
    scales = {"k": 0.04, "v": 0.01, "q": 0.05}
    tensors = {
        f"layers.{n}.attention.{t}_fake_quantizer.qscale_act": torch.tensor(value)
        for n in range(4)
        for t, value in scales.items()
    }
    for n in range(4):
        modules = [f"attention.w{x}" for x in "qkvo"] + [f"feed_forward.w{x}" for x in "123"]
        for module in modules:
            tensors |= {f"layers.{n}.{module}.weight": torch.zeros(2, 2)}
            for what in ("act", "weight"):
                tensors |= {f"layers.{n}.{module}.qscale_{what}": torch.tensor(0.02)}
    save_file(tensors, directory / "consolidated.safetensors")
    (directory / "params.json").write_text(
        json.dumps(
            {"dim": 5120, "n_layers": 4, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8}
            | {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}}
        )
    )
    return audited(directory, (0, "k"), (3, "v"), (0, "q"))


def _scales_of_weights(directory: Path) -> Answer:
    model = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "num_hidden_layers": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "num_nextn_predict_layers": 1,
    }
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    names = [f"{at}.attn" for at in ("layers.0", "layers.1", "layers.2", "layers.3", "mtp.0")]
    blocks: dict[str, Any] = {
        f"{name}.{w}.scale": torch.full((4, 4), 0.01)
        for name in names
        for w in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")
    }
    blocks |= {f"{name}.wkv.weight": torch.zeros(2, 2) for name in names}
    return audited(checkpoint(directory, blocks, model=model, quantization=quantization))


def _json(directory: Path, document: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "kv_cache_scales.json"
    path.write_text(json.dumps(document))
    return path


def _sglang(directory: Path, factors: dict[str, Any]) -> Answer:
    cache = {"dtype": "float8_e4m3fn", "scaling_factor": factors}
    path = _json(directory, {"model_type": "qwen3_5_moe", "kv_cache": cache})
    return audited(path, form="sglang-json")


def _sglang_sparse(directory: Path) -> Answer:
    return _sglang(directory, {str(rank): {"3": 0.023, "7": 0.027, "11": 0.031} for rank in range(2)})


def _sglang_lists(directory: Path) -> Answer:
    answer = _sglang(directory, {"0": {str(n): [0.05, 0.012] for n in range(4)}})
    return {"refused": answer["refused"], "names it": "layer 0 is '[0.05, 0.012]'" in answer["text"]}


def _sglang_without_cache(directory: Path) -> Answer:
    answer = audited(_json(directory, {"model_type": "m", "scaling_factor": {"0": {"3": 0.04}}}))
    return {"refused": answer["refused"], "names it": "kv_cache.scaling_factor" in answer["text"]}


def _sglang_rank_keys(directory: Path) -> Answer:
    return _sglang(directory, {"rank0": {str(n): 0.05 + n / 100 for n in range(3)}})


def _mixed_formats(directory: Path) -> Answer:
    formats = {0: "FP8", 1: "FP8", 3: "NVFP4", 4: "NVFP4", 5: "FP8"}
    declared = {
        "kv_cache_quant_algo": "MIXED_PRECISION",
        "kv_cache_quantized_layers": {
            f"model.layers.{n}.self_attn": {"quant_algo": algorithm} for n, algorithm in formats.items()
        },
        "kv_cache_schema_version": 1,
    }
    tensors = _projections("model.layers", dict.fromkeys(formats, (0.03, 0.01)))
    quantization = {"quant_method": "modelopt", "producer": MODELOPT["producer"]} | declared
    model = LLAMA | {"num_hidden_layers": 6}
    path = checkpoint(directory, tensors, model=model, quantization=quantization)
    (path / "hf_quant_config.json").write_text(
        json.dumps({"producer": MODELOPT["producer"], "quantization": declared})
    )
    return audited(path, (0, "k"), (3, "k"))


def _shared_layers(directory: Path) -> Answer:
    model = {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text",
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "num_kv_shared_layers": 20,
            "layer_types": [("full" if n % 5 == 4 else "sliding") + "_attention" for n in range(35)],
        },
        "vision_config": {"num_hidden_layers": 16},
    }
    tensors = _attention(
        "model.language_model.layers", {n: (0.002 + n / 100_000, 0.02 + n / 10_000) for n in range(15)}
    )
    return audited(checkpoint(directory, tensors, model=model, quantization=COMPRESSED), (14, "k"), (15, "k"))


def _k_for_v(directory: Path) -> Answer:
    model = {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text",
            "num_hidden_layers": 12,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "num_global_key_value_heads": 4,
            "head_dim": 256,
            "attention_k_eq_v": True,
            "layer_types": [("full" if n % 6 == 5 else "sliding") + "_attention" for n in range(12)],
        },
    }
    tensors = _projections("model.language_model.layers", dict.fromkeys(range(12), (0.003, 0.03)))
    for n in (5, 11):
        del tensors[f"model.language_model.layers.{n}.self_attn.v_proj.v_scale"]
    return audited(checkpoint(directory, tensors, model=model, quantization=MODELOPT), (5, "v"), (4, "v"))


def _nested_configuration(directory: Path) -> Answer:
    text = LLAMA | {"quantization_config": COMPRESSED}
    model = {"model_type": "kimi_k25", "vision_config": {"num_hidden_layers": 27}, "text_config": text}
    tensors = _attention("language_model.model.layers", {n: (0.03 + n / 1_000, 0.02) for n in range(4)})
    return audited(checkpoint(directory, tensors, model=model), (0, "k"))


def _quark(directory: Path, layers: dict[str, Any], amax_over: float) -> Answer:
    quantization = {
        "quant_method": "quark",
        "export": {"kv_cache_group": ["*k_proj", "*v_proj"], "pack_method": "reorder"},
        "layer_quant_config": layers,
        "global_quant_config": {"weight": None, "input_tensors": None, "output_tensors": None},
        "exclude": ["lm_head"],
    }
    tensors = {
        f"model.layers.{n}.self_attn.{t}_proj.output_scale": (value + n) / amax_over
        for n in range(4)
        for t, value in (("k", 14.0), ("v", 3.0))
    }
    return audited(checkpoint(directory, tensors, model=LLAMA, quantization=quantization), (0, "k"))


def _quark_int8(directory: Path) -> Answer:
    output = {"dtype": "int8", "is_dynamic": False, "qscheme": "per_tensor"}
    layers = {name: {"weight": None, "output_tensors": output} for name in ("*k_proj", "*v_proj")}
    return _quark(directory, layers, 127)


def _quark_without_its_group(directory: Path) -> Answer:
    return _quark(directory, {}, 448)


def _mla(directory: Path, tensors: dict[str, Any], quantization: dict[str, Any]) -> Answer:
    model = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 4,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    return audited(checkpoint(directory, tensors, model=model, quantization=quantization), (0, "k"))


def _mla_latent(directory: Path) -> Answer:
    name = "model.layers.{}.self_attn.mla_attn.mla_attn.k_scale"
    return _mla(directory, {name.format(n): 0.11 + n / 1_000 for n in range(4)}, MODELOPT)


def _mla_without_a_method(directory: Path) -> Answer:
    return _mla(
        directory, _attention("model.layers", {n: (0.11 + n / 1_000,) * 2 for n in range(4)}), COMPRESSED
    )


def _sglang_on_compressed(directory: Path) -> Answer:
    heads = torch.tensor([0.02, 0.05], dtype=torch.bfloat16).reshape(2, 1, 1)
    tensors = {f"model.layers.{n}.self_attn.{t}_scale": heads.clone() for n in range(2) for t in "kv"}
    quantization = COMPRESSED | {"kv_cache_scheme": scheme(strategy="attn_head")}
    model = LLAMA | {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}
    path = checkpoint(directory, tensors, model=model, quantization=quantization)
    return audited(path, (0, "k"), engine="sglang")


def _modelopt_int8(directory: Path) -> Answer:
    quantization = MODELOPT | {
        "quant_algo": "FP8",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "int"},
    }
    tensors = _projections(
        "model.layers", {n: (13.44 / 127 + n / 1_000, 0.035 + n / 1_000) for n in range(4)}
    )
    path = checkpoint(directory, tensors, model=LLAMA, quantization=quantization)
    (path / "hf_quant_config.json").write_text(
        json.dumps({"producer": MODELOPT["producer"], "quantization": {"kv_cache_quant_algo": "INT8"}})
    )
    return audited(path, (0, "k"))


CASES = (
    Case(
        "hybrid-modelopt",
        "sglang#37446",
        "16 attention layers of 64, all with scales; no finding",
        _hybrid,
        HEALTHY
        | {"layers": ATTENDING, "other_modules": []}
        | {"3 k": (0.0303, 0.0303, 13.57), "63 v": (0.183, 0.183, 81.98)},
    ),
    Case(
        "draft-head-is-not-layer-0",
        "1Cat-vLLM#447",
        "K 0.9 / V 0.8 belong to the MTP head; layer 0 has no cache",
        _draft_head,
        HEALTHY
        | {"layers": ATTENDING, "other_modules": [("draft", 2)]}
        | {"0 k": None, "3 k": (0.03, 0.03, 13.44)},
    ),
    Case(
        "draft-layer-past-the-last",
        "vllm#49262, #56539",
        "layer 8 is the draft layer (num_nextn_predict_layers); no finding",
        _draft_layer_past_the_last,
        HEALTHY
        | {"layers": list(range(8)), "other_modules": [("draft", 2)]}
        | {"7 k": (0.037, 0.037, 16.58)},
    ),
    Case(
        "larger-vision-tower",
        "intel/auto-round#1199",
        "the language model's 18 layers are read; the tower's 54 scales are named as what will not load",
        _larger_vision_tower,
        HEALTHY
        | {
            "findings": [("warning", "unmatched-names", [])],
            "layers": list(range(18)),
            "other_modules": [("vision", 54)],
        }
        | {"0 k": (0.02, 0.02, 8.96), "17 v": (0.005, 0.005, 2.24)},
    ),
    Case(
        "tensorrt-llm-int8",
        "TensorRT-LLM#133, #2446",
        "INT8: covers 127 · s = 14 in layer 0; no FP8 artifact",
        _tensorrt_int8,
        HEALTHY
        | {"findings": [("note", "other-format", [])], "number_format": "int8"}
        | {"layers": list(range(4)), "other_modules": []}
        | {"0 k": (0.1102, 0.1102, 14.0)},
    ),
    Case(
        "ascend-c8",
        "vllm-ascend#7474, #4218",
        "INT8 per channel: vllm-ascend reads it, it is not FP8 and cannot be replayed",
        _ascend_c8,
        {
            "findings": [("warning", "other-format", [])],
            "number_format": "int8-per-channel",
            "layers": [],
            "tensors": "",
            "other_modules": [],
        },
    ),
    Case(
        "mistral-native",
        "vllm#10130, #16803",
        "K 0.04, V 0.01, Q 0.05 in 4 layers (n_layers of params.json)",
        _mistral_native,
        HEALTHY
        | {"layers": list(range(4)), "other_modules": []}
        | {"0 k": (0.04, 0.04, 17.92), "3 v": (0.01, 0.01, 4.48), "0 q": (0.05, 0.05, None)},
    ),
    Case(
        "scales-of-weights",
        "vllm#43472",
        "no KV scales; the cache's layout has scales of its own; no error",
        _scales_of_weights,
        {"findings": [], "number_format": None, "layers": [], "tensors": "", "other_modules": []},
    ),
    Case(
        "sglang-sparse-json",
        "sglang#37379",
        "SGLang wants every layer, so it uses 1.0; nothing says that another model is meant",
        _sglang_sparse,
        HEALTHY
        | {
            "findings": [("error", "silent-default", [3, 7, 11])],
            "layers": [3, 7, 11],
            "other_modules": [],
        },
    ),
    Case(
        "sglang-lists",
        "sglang#18372, #20705",
        "refused, with the reason: one number a layer",
        _sglang_lists,
        {"refused": "ArtifactError", "names it": True},
    ),
    Case(
        "sglang-without-kv-cache",
        "sglang#18373",
        "refused, with the reason: no kv_cache.scaling_factor",
        _sglang_without_cache,
        {"refused": "ArtifactError", "names it": True},
    ),
    Case(
        "sglang-rank-keys",
        "published JSON files with rank0",
        "read, and the engine refuses the keys: 1.0",
        _sglang_rank_keys,
        HEALTHY
        | {
            "findings": [("error", "silent-default", [0, 1, 2])],
            "layers": [0, 1, 2],
            "other_modules": [],
        },
    ),
    Case(
        "modelopt-mixed-formats",
        "Model-Optimizer#2272, vllm#56116",
        "layers 0, 1, 5 FP8, 3, 4 NVFP4, 2 left in BF16; vLLM 0.32 does not start without quant_algo",
        _mixed_formats,
        HEALTHY
        | {
            "findings": [("error", "engine-crash", []), ("note", "other-format", [])],
            "number_format": "mixed",
            "layers": [0, 1, 3, 4, 5],
            "other_modules": [],
        }
        | {"0 k": (0.03, 0.03, 13.44), "3 k": (0.03, None, None)},
    ),
    Case(
        "layers-that-share-a-cache",
        "vllm#55559, #49262",
        "layers 15 to 34 read the cache of 13 or 14 and need its scales under their own names",
        _shared_layers,
        HEALTHY
        | {
            "findings": [("error", "missing-layers", list(range(15, 35)))],
            "layers": list(range(35)),
            "other_modules": [],
        }
        | {"14 k": (0.00214, 0.00214, 0.9587), "15 k": (None, 1.0, 448.0)},
    ),
    Case(
        "k-stands-for-v",
        "vllm#49262",
        "K's scale serves V in layers 5 and 11, which have no v_proj",
        _k_for_v,
        HEALTHY
        | {
            "findings": [("warning", "silent-default", [5, 11])],
            "layers": list(range(12)),
            "other_modules": [],
        }
        | {"5 v": (None, 0.003, 1.344), "4 v": (0.03, 0.03, 13.44)},
    ),
    Case(
        "nested-quantization-config",
        "vllm-ascend#7076",
        "compressed-tensors, scales used as stored",
        _nested_configuration,
        HEALTHY | {"layers": list(range(4)), "other_modules": [], "0 k": (0.03, 0.03, 13.44)},
    ),
    Case(
        "quark-int8",
        "Quark's int8 KV cache",
        "vLLM does not start; covers 127 · s = 14",
        _quark_int8,
        HEALTHY
        | {
            "findings": [("error", "engine-crash", []), ("error", "other-format", [])],
            "number_format": "int8",
            "layers": list(range(4)),
            "other_modules": [],
        }
        | {"0 k": (0.1102, None, 14.0)},
    ),
    Case(
        "quark-without-its-group",
        "a kv_cache_group that matches nothing in layer_quant_config",
        "vLLM does not start",
        _quark_without_its_group,
        HEALTHY
        | {
            "findings": [("error", "engine-crash", [])],
            "layers": list(range(4)),
            "other_modules": [],
        }
        | {"0 k": (0.03125, 0.03125, 14.0)},
    ),
    Case(
        "mla-latent",
        "vllm#25968",
        "one scale for the latent in each layer, MLA caches no V; vLLM 0.32 was seen to load none of them",
        _mla_latent,
        HEALTHY
        | {
            "findings": [("error", "silent-default", [0, 1, 2, 3])],
            "tensors": "k",
            "layers": list(range(4)),
            "other_modules": [],
        }
        | {"0 k": (0.11, 1.0, 448.0)},
    ),
    Case(
        "mla-without-a-method",
        "AutoFP8#44, vllm-gaudi#763",
        "compressed-tensors gives MLA layers no KV method: 1.0 in every layer",
        _mla_without_a_method,
        HEALTHY
        | {
            "findings": [("error", "silent-default", [0, 1, 2, 3])],
            "tensors": "k",
            "layers": list(range(4)),
            "other_modules": [],
        }
        | {"0 k": (0.11, 1.0, 448.0)},
    ),
    Case(
        "sglang-on-compressed-tensors",
        "sglang#35455",
        "SGLang skips attn_head scales: 1.0 everywhere",
        _sglang_on_compressed,
        HEALTHY
        | {
            "findings": [("error", "silent-default", [0, 1])],
            "layers": [0, 1],
            "other_modules": [],
        }
        | {"0 k": (0.02002, 1.0, 448.0)},
    ),
    Case(
        "modelopt-int8",
        "kv_cache_quant_algo INT8",
        "covers 127 · s = 13.44; vLLM knows no INT8 cache here and keeps the model's dtype",
        _modelopt_int8,
        HEALTHY
        | {
            "findings": [("error", "other-format", [])],
            "number_format": "int8",
            "layers": list(range(4)),
            "other_modules": [],
        }
        | {"0 k": (0.1058, None, 13.44)},
    ),
)
