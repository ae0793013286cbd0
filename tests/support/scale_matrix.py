"""Families of models × producers of scales, as small as they can be: names and configurations alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LAYERS = 4


@dataclass(frozen=True)
class Family:
    """How a family names its attention layers in a checkpoint and in vLLM, and its configuration."""

    name: str
    model_class: str
    """vLLM's, whose names of weights are asked for: `module:class`."""
    stored: str
    """Prefix of a layer's attention in the checkpoint; `{}` is the layer."""
    held: str
    """vLLM's name of the layer that holds the scales."""
    config: dict[str, Any]
    attending: tuple[int, ...] = tuple(range(LAYERS))
    is_latent: bool = False
    inner: dict[str, str] = field(default_factory=dict)
    """Modules of the model that load weights in a way of their own: path → `module:class`."""
    others: tuple[str, ...] = ()
    """Prefixes of other modules, which an exporter gave scales too."""
    is_native: bool = False
    """In Mistral's own format: `config` is that of params.json, and its quantization is in it."""


@dataclass(frozen=True)
class Producer:
    """What a producer declares, and how it names a scale; `{}` is the attention's prefix."""

    name: str
    quantization: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    """`k`, `v`, `q` or `kv` → name."""
    cache_dtype: str = "fp8"
    is_native: bool = False
    """It writes Mistral's own format alone."""
    is_of_latents: bool = False
    """It names the latents of MLA alone."""


SHAPE = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
FULL_OF_TWO = ["linear_attention", "full_attention"] * 2

FAMILIES = (
    Family(
        "llama",
        "llama:LlamaForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | SHAPE,
        inner={"model": "llama:LlamaModel"},
    ),
    Family(
        "qwen3",
        "qwen3:Qwen3ForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]} | SHAPE,
        inner={"model": "qwen3:Qwen3Model"},
    ),
    Family(
        "stablelm",
        "stablelm:StablelmForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "stablelm", "architectures": ["StableLmForCausalLM"]} | SHAPE,
    ),
    Family(
        "minicpm3",
        "minicpm3:MiniCPM3ForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "minicpm3", "architectures": ["MiniCPM3ForCausalLM"], "kv_lora_rank": 256} | SHAPE,
    ),
    Family(
        "qwen3-next",
        "qwen3_next:Qwen3NextForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "qwen3_next", "full_attention_interval": 2, "num_nextn_predict_layers": 1} | SHAPE,
        attending=(1, 3),
        inner={"model": "qwen3_next:Qwen3NextModel"},
        others=("mtp.layers.0.self_attn",),
    ),
    Family(
        "qwen3.5",
        "qwen3_5:Qwen3_5ForConditionalGeneration",
        "model.language_model.layers.{}.self_attn",
        "language_model.model.layers.{}.self_attn.attn",
        {
            "model_type": "qwen3_5",
            "text_config": {"layer_types": FULL_OF_TWO, "mtp_num_hidden_layers": 1} | SHAPE,
            "vision_config": {"depth": 2},
        },
        attending=(1, 3),
        others=("mtp.layers.0.self_attn", "model.visual.blocks.1.attn"),
    ),
    Family(
        "nemotron-h",
        "nemotron_h:NemotronHForCausalLM",
        "backbone.layers.{}.mixer",
        "model.layers.{}.mixer.attn",
        {
            "model_type": "nemotron_h",
            "architectures": ["NemotronHForCausalLM"],
            "hybrid_override_pattern": "M*-*",
        }
        | SHAPE,
        attending=(1, 3),
    ),
    Family(
        "gemma4-shared",
        "gemma4_mm:Gemma4ForConditionalGeneration",
        "model.language_model.layers.{}.self_attn",
        "language_model.model.layers.{}.self_attn.attn",
        {
            "model_type": "gemma4",
            "text_config": {
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 2,
            }
            | SHAPE,
        },
        others=("model.vision_tower.encoder.layers.0.self_attn",),
    ),
    Family(
        "deepseek-mla",
        "deepseek_v2:DeepseekV3ForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.mla_attn.mla_attn",
        {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64} | SHAPE,
        is_latent=True,
        inner={"model": "deepseek_v2:DeepseekV2Model"},
    ),
    Family(
        "paligemma",
        "paligemma:PaliGemmaForConditionalGeneration",
        "language_model.model.layers.{}.self_attn",
        "language_model.model.layers.{}.self_attn.attn",
        {"model_type": "paligemma", "text_config": dict(SHAPE), "vision_config": {"num_hidden_layers": 6}},
        others=("vision_tower.vision_model.encoder.layers.5.self_attn",),
    ),
    Family(
        "whisper",
        "whisper:WhisperForConditionalGeneration",
        "model.decoder.layers.{}.self_attn",
        "model.decoder.layers.{}.self_attn.attn",
        {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "decoder_layers": LAYERS,
            "num_hidden_layers": 6,
            "decoder_attention_heads": 2,
            "encoder_layers": 6,
        },
        others=("model.encoder.layers.5.self_attn",),
    ),
    Family(
        "kimi-k2.5",
        "kimi_k25:KimiK25ForConditionalGeneration",
        "language_model.model.layers.{}.self_attn",
        "language_model.model.layers.{}.self_attn.mla_attn.mla_attn",
        {"model_type": "kimi_k25", "text_config": {"kv_lora_rank": 512} | SHAPE},
        is_latent=True,
        inner={
            "language_model": "deepseek_v2:DeepseekV2ForCausalLM",
            "language_model.model": "deepseek_v2:DeepseekV2Model",
        },
    ),
    Family(
        "llama4",
        "mllama4:Llama4ForConditionalGeneration",
        "language_model.model.layers.{}.self_attn",
        "language_model.model.layers.{}.self_attn.attn",
        {
            "model_type": "llama4",
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": {"model_type": "llama4_text"} | SHAPE,
            "vision_config": {"num_hidden_layers": 6},
        },
        inner={
            "language_model": "llama4:Llama4ForCausalLM",
            "language_model.model": "llama4:Llama4Model",
        },
        others=("vision_model.model.layers.5.self_attn",),
    ),
    Family(
        "mistral-native",
        "mistral:MistralForCausalLM",
        "layers.{}.attention",
        "model.layers.{}.self_attn.attn",
        {"dim": 128, "n_layers": LAYERS, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32}
        | {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}},
        is_native=True,
    ),
)

_FLOAT = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
_ATTENTION = {t: "{}." + f"{t}_scale" for t in "kvq"}
_PROJECTIONS = {t: "{}." + f"{t}_proj.{t}_scale" for t in "kv"}
_OUTPUTS = {t: "{}." + f"{t}_proj.output_scale" for t in "kvq"}


def _compressed(**scheme: Any) -> dict[str, Any]:
    declared = {key: value for key, value in (_FLOAT | scheme).items() if value is not None}
    return {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": declared}


def _modelopt(**fields: Any) -> dict[str, Any]:
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    return {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": scheme} | fields


def _quark(dtype: str | None) -> dict[str, Any]:
    output = {"output_tensors": {"dtype": dtype, "qscheme": "per_tensor", "is_dynamic": False}}
    return {
        "quant_method": "quark",
        "export": {"kv_cache_group": ["*k_proj", "*v_proj"], "pack_method": "reorder"},
        "layer_quant_config": {"*k_proj": output, "*v_proj": output} if dtype else {},
        "global_quant_config": {},
        "exclude": [],
    }


_MIXED = {
    "quant_algo": "MIXED_PRECISION",
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
    "quantized_layers": {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}},
}

_FP4 = {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16}
_NESTED = {
    "quant_method": "modelopt",
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}
_MAP = {
    "kv_cache_scheme": None,
    "kv_cache_quant_algo": "MIXED_PRECISION",
    "kv_cache_quantized_layers": {
        "model.layers.1.self_attn": {"quant_algo": "FP8"},
        "model.layers.3.self_attn": {"quant_algo": "NVFP4"},
    },
}
_GROUPS = {"group_size": 128, "desc_act": False}
_FAKE = {t: "{}." + f"{t}_fake_quantizer.qscale_act" for t in ("k", "v", "q", "kv")}

PRODUCERS = (
    Producer("compressed-tensors", _compressed(), _ATTENTION),
    Producer("compressed-tensors-int8", _compressed(type="int"), _ATTENTION),
    Producer("compressed-tensors-no-strategy", _compressed(strategy=None), _ATTENTION),
    Producer("modelopt", _modelopt(), _PROJECTIONS),
    Producer("modelopt-without-algorithm", _modelopt(quant_algo=None), _PROJECTIONS),
    Producer("modelopt-mixed-weights", _modelopt(**_MIXED), _PROJECTIONS),
    Producer("modelopt-mixed-weights-alone", _modelopt(**_MIXED | {"kv_cache_scheme": None}), _PROJECTIONS),
    Producer("modelopt-nested", _NESTED, _PROJECTIONS),
    Producer("modelopt-nvfp4", _modelopt(quant_algo="NVFP4", kv_cache_scheme=_FP4), _PROJECTIONS, "nvfp4"),
    Producer("modelopt-map-of-layers", _modelopt(**_MAP), _PROJECTIONS),
    Producer("quark", _quark("fp8_e4m3"), _OUTPUTS),
    Producer("quark-int8", _quark("int8"), _OUTPUTS),
    Producer("quark-without-its-group", _quark(None), _OUTPUTS),
    Producer("fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"}, _ATTENTION),
    Producer("autofp8-merged", {"quant_method": "fp8", "activation_scheme": "static"}, {"kv": "{}.kv_scale"}),
    Producer(
        "autofp8",
        {"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": "static"},
        {t: _ATTENTION[t] for t in "kv"},
    ),
    Producer(
        "latent-by-its-own-name",
        _modelopt(),
        {"k": "{}.mla_attn.mla_attn.k_scale"},
        is_of_latents=True,
    ),
    Producer("compressed-tensors-old", _compressed(), _OUTPUTS),
    Producer("undeclared", {}, _ATTENTION),
    Producer("unknown-names", _compressed(), {t: "{}." + f"{t}_scale_0" for t in "kv"}),
    Producer("gptq", {"quant_method": "gptq", "bits": 4, "sym": True} | _GROUPS, _ATTENTION),
    Producer("awq", {"quant_method": "awq", "bits": 4, "zero_point": True} | _GROUPS, _ATTENTION),
    Producer(
        "mistral",
        {"quant_method": "fp8", "activation_scheme": "static"},
        {t: _FAKE[t] for t in "kvq"},
        is_native=True,
    ),
    Producer(
        "mistral-merged",
        {"quant_method": "fp8", "activation_scheme": "static"},
        {"kv": _FAKE["kv"]},
        is_native=True,
    ),
)
CELLS = [
    (family, producer)
    for family in FAMILIES
    for producer in PRODUCERS
    if family.is_native == producer.is_native and (family.is_latent or not producer.is_of_latents)
]


def scales_of(family: Family, producer: Producer, *, others: bool = True) -> dict[str, float]:
    """Return name → value, each value another power of two times a small odd number: none is like another."""
    found: dict[str, float] = {}
    for number, layer in enumerate(family.attending):
        for place, (_, name) in enumerate(sorted(producer.names.items())):
            found[name.format(family.stored.format(layer))] = 2.0 ** -(number + 1) * (1 + 2 * place)
    for other in family.others if others else ():
        for name in producer.names.values():
            found[name.format(other)] = 96.0
    return found
