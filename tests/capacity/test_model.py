"""Which layers keep what, and which layouts are refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.capacity_cases import FAMILIES, LATENT, SHAPE

from kvtrace.capacity.model import model_layers, read_model_layers
from kvtrace.capacity.plan import plan_cache
from kvtrace.capacity.serving import Serving
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = SHAPE | {"model_type": "llama", "num_hidden_layers": 4}


def of_family(model_type: str) -> dict[str, Any]:
    return next(case.full_config for case in FAMILIES if case.model_type == model_type)


def test_layers_that_read_anothers_cache_own_none() -> None:
    model = model_layers(of_family("gemma3n_text"), "config.json", name="m")
    assert [layer.index for layer in model.layers] == [0, 1, 2, 3, 4, 5]
    assert model.num_shared == 4


def test_layers_of_one_model_may_differ_in_heads_and_head_size() -> None:
    model = model_layers(of_family("gemma4_text"), "config.json", name="m")
    shapes = [(layer.kind, layer.kv_heads, layer.head_dim) for layer in model.layers]
    assert shapes == [("sliding", 2, 64)] * 5 + [("full", 1, 128)]


def test_a_models_own_draft_layers_are_added_where_they_serve() -> None:
    config = LATENT | SHAPE | {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}
    plain = model_layers(config, "config.json", name="m")
    drafting = model_layers(config, "config.json", name="m", own_draft=True)
    assert len(plain.layers) == 3
    assert [(layer.index, layer.kind, layer.is_draft) for layer in drafting.layers[3:]] == [
        (3, "latent", True)
    ]


def test_a_draft_model_brings_its_own_layers_and_bytes() -> None:
    model = model_layers(LLAMA, "config.json", name="m")
    draft = model_layers(LLAMA | {"num_hidden_layers": 1}, "draft", name="d")
    serving = Serving(max_model_len=512)
    alone, both = plan_cache(model, serving), plan_cache(model.with_draft(draft), serving)
    assert both.bytes_per_token * 4 == alone.bytes_per_token * 5


def test_a_model_of_text_and_images_is_its_text_model() -> None:
    config = {"model_type": "qwen3_vl", "text_config": LLAMA | {"model_type": "qwen3_vl_text"}}
    assert len(model_layers(config, "config.json", name="m").layers) == 4


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("deepseek_v4", "pages of their own"),
        ("deepseek_v32", "an index beside the latents"),
        ("minimax_m3", "an index beside K and V"),
        ("whisper", "cross attention"),
        ("one-of-next-year", "does not know what its layers keep"),
    ],
)
def test_a_layout_that_is_not_known_is_refused_by_name(model_type: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        model_layers(LLAMA | {"model_type": model_type}, "config.json", name="m")
    assert model_type in str(refused.value)
    assert words in str(refused.value)
    assert "--from-log" in str(refused.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"head_dim": None, "hidden_size": "wide"}, "hidden_size"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads"),
        ({"torch_dtype": "float8"}, "dtype is 'float8'"),
        ({"torch_dtype": ["bfloat16"]}, "dtype is"),
        ({"model_type": "lfm2", "layer_types": ["conv"] * 4, "hidden_size": None}, "hidden_size"),
    ],
)
def test_a_size_that_is_missing_or_odd_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_layers(LLAMA | config, "config.json", name="m")


def test_a_file_that_is_no_configuration_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="expected a JSON object"):
        read_model_layers(tmp_path)
    with pytest.raises(InputError, match=r"expected a checkpoint, its config\.json or a trace"):
        read_model_layers(tmp_path / "absent")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_model_layers(tmp_path).name == tmp_path.name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tp": 3}, "do not split over 3 ranks"),
        ({"cache_dtype": "fp7"}, "unknown"),
        ({"cache_dtype": "fp8_ds_mla"}, "keeps K and V"),
        ({"cache_dtype": "lmdeploy_int8"}, "whose planning"),
        ({"skip_layers": ("4",)}, "layer numbers below 4"),
        ({"skip_layers": ("attention",)}, "sliding_window"),
        ({"backend": "FANCY"}, "its block sizes are not known"),
        ({"block_size": 24}, "FLASH_ATTN takes multiples of 16"),
        ({"platform": "cpu", "cache_dtype": "nvfp4"}, "no CPU backend"),
        ({"max_model_len": 0}, "max-model-len is 0"),
    ],
)
def test_a_serving_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    model = model_layers(LLAMA, "config.json", name="m")
    with pytest.raises(InputError, match=words):
        plan_cache(model, Serving(**({"max_model_len": 512} | settings)))


def test_latents_take_only_the_dtypes_that_their_backends_have() -> None:
    model = model_layers(LATENT | SHAPE | {"model_type": "deepseek_v3"}, "config.json", name="m")
    with pytest.raises(InputError, match="no backend has it for latents"):
        plan_cache(model, Serving(max_model_len=512, cache_dtype="fp8_per_token_head"))
