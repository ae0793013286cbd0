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
    mapper_is_of_the_model: bool = True
    """False: the outer loader passes no map of the model's own (its inner module does, for weights)."""
    remaps_again: bool = False
    """The model's inner `load_weights` renames scales once more, after the loader's map."""
    others: tuple[str, ...] = ()
    """Prefixes of other modules, which an exporter gave scales too."""


@dataclass(frozen=True)
class Producer:
    """What a producer declares, and how it names a scale; `{}` is the attention's prefix."""

    name: str
    quantization: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    """`k`, `v`, `q` or `kv` → name."""


SHAPE = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
FULL_OF_TWO = ["linear_attention", "full_attention"] * 2

FAMILIES = (
    Family(
        "llama",
        "llama:LlamaForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "llama"} | SHAPE,
        mapper_is_of_the_model=False,
    ),
    Family(
        "qwen3-next",
        "qwen3_next:Qwen3NextForCausalLM",
        "model.layers.{}.self_attn",
        "model.layers.{}.self_attn.attn",
        {"model_type": "qwen3_next", "full_attention_interval": 2, "num_nextn_predict_layers": 1} | SHAPE,
        attending=(1, 3),
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
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-*"} | SHAPE,
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
        mapper_is_of_the_model=False,
        remaps_again=True,
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
        remaps_again=True,
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

PRODUCERS = (
    Producer("compressed-tensors", _compressed(), _ATTENTION),
    Producer("compressed-tensors-int8", _compressed(type="int"), _ATTENTION),
    Producer("compressed-tensors-no-strategy", _compressed(strategy=None), _ATTENTION),
    Producer("modelopt", _modelopt(), _PROJECTIONS),
    Producer("modelopt-without-algorithm", _modelopt(quant_algo=None), _PROJECTIONS),
    Producer("modelopt-mixed-weights", _modelopt(**_MIXED), _PROJECTIONS),
    Producer("quark", _quark("fp8_e4m3"), _OUTPUTS),
    Producer("quark-int8", _quark("int8"), _OUTPUTS),
    Producer("quark-without-its-group", _quark(None), _OUTPUTS),
    Producer("fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"}, _ATTENTION),
    Producer("autofp8-merged", {"quant_method": "fp8", "activation_scheme": "static"}, {"kv": "{}.kv_scale"}),
)


def scales_of(family: Family, producer: Producer) -> dict[str, float]:
    """Return name → value, each value another power of two times a small odd number: none is like another."""
    found: dict[str, float] = {}
    for number, layer in enumerate(family.attending):
        for place, (_, name) in enumerate(sorted(producer.names.items())):
            found[name.format(family.stored.format(layer))] = 2.0 ** -(number + 1) * (1 + 2 * place)
    for other in family.others:
        for name in producer.names.values():
            found[name.format(other)] = 96.0
    return found
