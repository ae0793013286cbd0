"""A recipe of formats by layer, as ModelOpt writes it: read, made a candidate, written, and read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.checkpoints import checkpoint
from support.fabricate import fabricate_trace, request

from kvtrace.candidates import FormatScales, ServingSetup, standard_candidates
from kvtrace.candidates.bind import bind_candidates
from kvtrace.candidates.recipe import cache_of, recipe_text
from kvtrace.errors import ArtifactError, InputError
from kvtrace.formats import parse_format
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace

LISTED = {0: "FP8", 1: "NVFP4", 3: "FP8_K_NVFP4_V"}
"""Of four layers; 2 stays in the model's dtype."""
AS_TEXT = "auto/0:fp8/1:nvfp4/3:k=fp8,v=nvfp4"
FIRST = "model.layers.0.self_attn"
MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def declared(listed: dict[int, str] = LISTED, **more: Any) -> dict[str, Any]:
    layers = {f"model.layers.{n}.self_attn": {"quant_algo": name} for n, name in listed.items()}
    return {
        "kv_cache_quant_algo": "MIXED_PRECISION",
        "kv_cache_quantized_layers": layers,
        "kv_cache_schema_version": 1,
    } | more


def named(entries: dict[str, Any]) -> dict[str, Any]:
    return declared(kv_cache_quantized_layers=entries)


def made(path: Path, **more: Any) -> Path:
    """A checkpoint of ModelOpt: K's scale is 0.5, V's 0.25, in every quantized layer."""
    tensors = {
        f"model.layers.{layer}.self_attn.{tensor}_proj.{tensor}_scale": value
        for layer in LISTED
        for tensor, value in (("k", 0.5), ("v", 0.25))
    }
    quantization = {"quant_method": "modelopt", **declared(**more)}
    return checkpoint(path, tensors, model=MODEL, quantization=quantization)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    values = np.random.default_rng(0).normal(size=(4, 2, 16))
    path = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(layer, tensor): values for layer in range(4) for tensor in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    return open_trace(path)


def test_a_checkpoint_and_each_of_its_files_give_the_same_cache(tmp_path: Path) -> None:
    path = made(tmp_path / "ckpt")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": declared()}))
    wanted = parse_format(AS_TEXT)
    assert cache_of(str(path)) == wanted
    assert cache_of(str(path / "config.json")) == wanted
    assert cache_of(str(tmp_path / "hf_quant_config.json")) == wanted
    assert "map-unread" in [fact.id for fact in cache_of(str(path)).facts]


def test_one_format_for_all_layers_is_that_format(tmp_path: Path) -> None:
    file = tmp_path / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}}))
    assert cache_of(str(file)) is parse_format("nvfp4")


def test_the_layers_of_a_draft_head_are_not_the_models(tmp_path: Path) -> None:
    file = tmp_path / "hf_quant_config.json"
    entries = {FIRST: {"quant_algo": "FP8"}, "mtp.layers.0.self_attn": {"quant_algo": "NVFP4"}}
    file.write_text(json.dumps({"quantization": named(entries)}))
    assert cache_of(str(file)) == parse_format("auto/0:fp8")


def test_a_name_of_a_format_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "nvfp4")
    monkeypatch.chdir(tmp_path)
    assert cache_of("nvfp4") is parse_format("nvfp4")
    assert cache_of("./nvfp4") == parse_format(AS_TEXT)


@pytest.mark.parametrize(
    ("text", "written", "algorithm"),
    [
        (AS_TEXT, LISTED, "MIXED_PRECISION"),
        ("fp8/0,3:auto", {1: "FP8", 2: "FP8"}, "FP8"),
        ("nvfp4", dict.fromkeys(range(4), "NVFP4"), "NVFP4"),
    ],
)
def test_what_is_written_reads_back_layer_for_layer(
    tmp_path: Path, text: str, written: dict[int, str], algorithm: str
) -> None:
    asked = parse_format(text)
    file = tmp_path / "hf_quant_config.json"
    file.write_text(recipe_text(asked, range(4), 4, is_hybrid=False))
    content = json.loads(file.read_text())["quantization"]
    assert content == {"quant_algo": None, **declared(written, kv_cache_quant_algo=algorithm)}
    read = cache_of(str(file))
    assert [read.in_layer(n) for n in range(4)] == [asked.in_layer(n) for n in range(4)]
    assert read.native_layers(4) == asked.native_layers(4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp8/1:turboquant_4bit_nc", "turboquant_4bit_nc: ModelOpt's map of layers has no name for it"),
        ("auto", "no layer is quantized"),
    ],
)
def test_what_the_map_has_no_name_for_is_not_written(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe_text(parse_format(text), range(4), 4, is_hybrid=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantization": {"quant_algo": "FP8"}}, "gives the KV cache no format"),
        ({"quantization": declared({0: "INT8"})}, "its KV cache is int8, for which vLLM has no cache"),
        ({"quantization": declared({0: "Q6"})}, "its KV cache is unknown"),
        ({"quantization": named({"lm_head": {"quant_algo": "FP8"}})}, "lm_head: names no layer"),
        ({"quantization": named({FIRST: {}})}, f"{FIRST}: has no quant_algo"),
        (
            {"quantization": named({FIRST: {"quant_algo": "FP8"}, "layers.0": {"quant_algo": "NVFP4"}})},
            "layer 0 is listed with two formats",
        ),
        ([], "is not a JSON object"),
    ],
)
def test_a_recipe_that_no_cache_has_is_refused(tmp_path: Path, content: object, message: str) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=message):
        cache_of(str(tmp_path / "hf_quant_config.json"))


def test_a_checkpoints_map_is_a_candidate_over_its_own_scales(tmp_path: Path, trace: Trace) -> None:
    candidates = standard_candidates([trace], [load_artifact(made(tmp_path / "ckpt"))])
    (found,) = [one for one in candidates if one.name == "ckpt:by-layer"]
    applied = found.scales_for(trace)
    assert applied is not None
    scales = {(layer, tensor): applied.values[layer, 0, tensor] for layer in range(4) for tensor in "kv"}
    assert scales == {
        (layer, tensor): None if layer == 2 else 0.5 if tensor == "k" else 0.25
        for layer in range(4)
        for tensor in "kv"
    }
    assert sorted(applied.codings) == [(1, "k"), (1, "v"), (3, "v")]
    assert sorted(applied.setups or ()) == [(0, "k"), (0, "v"), (3, "k")]
    assert "vLLM 0.32 reads no map of layers" in str(applied.note)


def test_that_vllm_refuses_the_configuration_does_not_keep_the_map_from_being_replayed(
    tmp_path: Path, trace: Trace
) -> None:
    candidates = standard_candidates([trace], [load_artifact(made(tmp_path / "ckpt"))])
    bound = bind_candidates(candidates, {"day": trace})
    assert bound.reasons["ckpt"].reason == "engine-crash"  # it has no quant_algo
    assert "ckpt:by-layer" in [one.name for one in bound.valid]


def test_an_nvfp4_checkpoints_scales_are_the_globals_of_an_nvfp4_cache(tmp_path: Path, trace: Trace) -> None:
    tensors = {
        f"model.layers.{n}.self_attn.{tensor}_proj.{tensor}_scale": 0.125 for n in range(4) for tensor in "kv"
    }
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}
    artifact = load_artifact(checkpoint(tmp_path / "four", tensors, model=MODEL, quantization=quantization))
    applied = FormatScales("n", parse_format("nvfp4"), ServingSetup(), artifact).scales_for(trace)
    assert set(applied.values.values()) == {0.125}
    bound = bind_candidates(standard_candidates([trace], [artifact], cache_dtypes=["nvfp4"]), {"day": trace})
    assert bound.reasons["four"].reason == "other-format"
    assert "nvfp4:four" in [one.name for one in bound.valid]
