"""Further members of the reported kinds: what holds for one holds for these."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from support.checkpoints import checkpoint, scheme

from checkpoint_cases.case import Answer, Case, audited
from checkpoint_cases.checkpoints import COMPRESSED, HEALTHY, LLAMA, MODELOPT

if TYPE_CHECKING:
    from pathlib import Path

FOUR = range(4)


def _named(name: str, layers: Any = FOUR) -> dict[str, float]:
    """Return K's and V's scales under a name with `{n}` and `{t}`; K's is 0.03 and V's 0.01."""
    return {name.format(n=n, t=t): value for n in layers for t, value in (("k", 0.03), ("v", 0.01))}


ATTENTION = "model.layers.{n}.self_attn.{t}_scale"
PROJECTION = "model.layers.{n}.self_attn.{t}_proj.{t}_scale"
OUTPUT = "model.layers.{n}.self_attn.{t}_proj.output_scale"


def _heads_by_layer(directory: Path) -> Answer:
    tensors = {
        f"model.layers.{n}.self_attn.{t}_scale": torch.full((heads, 1, 1), value + n / 10)
        for n, heads in ((0, 2), (1, 4))
        for t, value in (("k", 0.5), ("v", 0.25))
    }
    return audited(checkpoint(directory, tensors, model={}), (0, "k"), (1, "k"))


def _one_rank_alone(directory: Path) -> Answer:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "scales.json"
    cache = {"dtype": "float8_e4m3fn", "scaling_factor": {"1": {"3": 0.02, "7": 0.03}}}
    path.write_text(json.dumps({"model_type": "llama", "kv_cache": cache}))
    return audited(path)


def _undeclared(directory: Path) -> Answer:
    return audited(checkpoint(directory, _named(ATTENTION), model=LLAMA), (0, "k"))


def _awq(directory: Path) -> Answer:
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    return audited(checkpoint(directory, _named(ATTENTION), model=LLAMA, quantization=quantization), (0, "k"))


def _quark_in_a_model_that_renames(directory: Path) -> Answer:
    output = {"dtype": "fp8_e4m3", "is_dynamic": False, "qscheme": "per_tensor"}
    quantization = {
        "quant_method": "quark",
        "export": {"kv_cache_group": ["*k_proj", "*v_proj"], "pack_method": "reorder"},
        "layer_quant_config": {name: {"output_tensors": output} for name in ("*k_proj", "*v_proj")},
        "global_quant_config": {},
    }
    model = LLAMA | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    return audited(checkpoint(directory, _named(OUTPUT), model=model, quantization=quantization), (0, "k"))


def _first_generation(directory: Path) -> Answer:
    return audited(checkpoint(directory, _named(OUTPUT), model=LLAMA, quantization=COMPRESSED), (0, "k"))


def _mixed_weights_alone(directory: Path) -> Answer:
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "producer": MODELOPT["producer"],
        "quantized_layers": {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}},
    }
    return audited(
        checkpoint(directory, _named(PROJECTION), model=LLAMA, quantization=quantization), (0, "k")
    )


def _expanded_latent(directory: Path) -> Answer:
    model = LLAMA | {"model_type": "minicpm3", "kv_lora_rank": 256, "qk_rope_head_dim": 32}
    return audited(
        checkpoint(directory, _named(ATTENTION), model=model, quantization=COMPRESSED), (0, "k"), (0, "v")
    )


def _merged_latent(directory: Path) -> Answer:
    model = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "num_key_value_heads": 128}
    model |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    tensors = {f"model.layers.{n}.self_attn.{t}_scale": [0.11 + n / 1_000] for n in FOUR for t in "kv"}
    path = checkpoint(directory, tensors, model=model, quantization=COMPRESSED)
    return {"advice": [one for one in _every_finding(path) if one == "merged-kv"]}


def _every_finding(path: Path) -> list[str]:
    from kvtrace.report.scales.build import scales_report
    from kvtrace.scales import load_artifact

    return [one.id for one in scales_report(load_artifact(path)).findings]


def _tensorrt_fp8_ranks(directory: Path) -> Answer:
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        factors = {
            f"transformer.layers.{n}.attention.kv_cache_scaling_factor": torch.tensor([0.02 + n / 100])
            for n in FOUR
        }
        save_file(factors, directory / f"rank{rank}.safetensors")
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    config = {"architecture": "LlamaForCausalLM", "num_hidden_layers": 4, "num_attention_heads": 8}
    (directory / "config.json").write_text(
        json.dumps(config | {"num_key_value_heads": 2, "quantization": quantization})
    )
    return audited(directory, (0, "k"), (3, "v"))


def _dynamic_for_sglang(directory: Path) -> Answer:
    quantization = COMPRESSED | {"kv_cache_scheme": scheme(dynamic=True)}
    path = checkpoint(directory, _named(ATTENTION), model=LLAMA, quantization=quantization)
    return audited(path, (0, "k"), engine="sglang")


SAME = {"layers": list(FOUR), "other_modules": [], "0 k": (0.03, 0.03, 13.44)}
AT_ONE = {"layers": list(FOUR), "other_modules": [], "0 k": (0.03, 1.0, 448.0)}
DROPPED = {"findings": [("error", "silent-default", list(FOUR))]}

CASES = (
    Case(
        "heads-by-layer-in-a-file-alone",
        "Gemma-4's class, without its config.json",
        "nothing says how many heads the model has, so none is missing",
        _heads_by_layer,
        HEALTHY
        | {"layers": [0, 1], "other_modules": []}
        | {"0 k": (0.5, 0.5, 224.0), "1 k": (0.6, 0.6, 268.8)},
    ),
    Case(
        "one-rank-alone",
        "a JSON file of rank 1 of several",
        "the engine does not start; of its layers 3 and 7 are known, not 8",
        _one_rank_alone,
        {"findings": [("error", "engine-crash", [3, 7])], "layers": [3, 7]},
    ),
    Case(
        "scales-that-nothing-declares",
        "a merge that lost quantization_config",
        "vLLM 0.32 stops loading at the first scale's name",
        _undeclared,
        HEALTHY | AT_ONE | {"findings": [("error", "engine-crash", []), *DROPPED["findings"]]},
    ),
    Case(
        "scales-beside-awq",
        "AWQ weights with KV scales",
        "vLLM loads none beside AWQ: 1.0 in every layer",
        _awq,
        HEALTHY | AT_ONE | DROPPED,
    ),
    Case(
        "quark-in-a-model-that-renames",
        "Quark onto Gemma 3",
        "vLLM 0.32 renames k_proj first and stops at output_scale",
        _quark_in_a_model_that_renames,
        HEALTHY | SAME | {"findings": [("error", "engine-crash", [])]},
    ),
    Case(
        "compressed-tensors-of-the-first-generation",
        "output_scale under compressed-tensors",
        "vLLM 0.32 stops at a name that it no longer maps",
        _first_generation,
        {"layers": list(FOUR), "0 k": (0.03, 1.0, 448.0), "number_format": "fp8"},
    ),
    Case(
        "mixed-precision-of-the-weights",
        "ModelOpt MIXED_PRECISION without a KV algorithm",
        "its attention layers get no KV-cache method: 1.0",
        _mixed_weights_alone,
        HEALTHY | AT_ONE | DROPPED,
    ),
    Case(
        "latent-that-is-expanded",
        "MiniCPM3, which has a kv_lora_rank and caches K and V",
        "K's and V's scales are used",
        _expanded_latent,
        HEALTHY | SAME | {"0 v": (0.01, 0.01, 4.48)},
    ),
    Case(
        "one-scale-of-a-latent",
        "MLA with equal numbers for K and V",
        "there is no V to calibrate apart",
        _merged_latent,
        {"advice": []},
    ),
    Case(
        "tensorrt-llm-fp8",
        "TensorRT-LLM, two ranks",
        "FP8: covers 448 · s, one number for K and V of each rank",
        _tensorrt_fp8_ranks,
        HEALTHY
        | {"layers": list(FOUR), "other_modules": []}
        | {"0 k": (0.02, 0.02, 8.96), "3 v": (0.05, 0.05, 22.4)},
    ),
    Case(
        "sglang-on-a-dynamic-scheme",
        "sglang#35455",
        "SGLang takes static schemes alone: 1.0",
        _dynamic_for_sglang,
        HEALTHY | AT_ONE | DROPPED,
    ),
)
