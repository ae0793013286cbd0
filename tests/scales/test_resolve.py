"""What an engine makes of an artifact: vLLM's rules, head slicing over ranks, and models that do not
match."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import checkpoint, compressed, scheme

from kvtrace.errors import InvalidCandidateError
from kvtrace.scales import ResolvedScales, load_artifact, resolve

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
NAN, INF = math.nan, math.inf


def resolved(path: Path, **setup: Any) -> ResolvedScales:
    return resolve(load_artifact(path), **({"num_layers": 2, "kv_heads_per_layer": 2} | setup))


def example(name: str, **setup: Any) -> ResolvedScales:
    return resolve(load_artifact(ARTIFACTS / name), num_layers=3, kv_heads_per_layer=2, **setup)


def values(found: ResolvedScales, layer: int, tensor: str, num_heads: int = 2) -> list[float]:
    return [found.scale(layer, head, tensor).value for head in range(num_heads)]


def kinds(found: ResolvedScales) -> list[str]:
    return [note.kind for note in found.notes]


def base(directory: Path, method: str = "fp8", **scales: float) -> Path:
    """A checkpoint of one of vLLM's base methods; layer 1 is sound, layer 0 has the given scales."""
    sound = {"model.layers.1.self_attn.k_scale": 0.5, "model.layers.1.self_attn.v_scale": 0.25}
    layer_0 = {f"model.layers.0.self_attn.{tensor}_scale": value for tensor, value in scales.items()}
    weights = {"quant_algo": "FP8"} if method == "modelopt" else {}
    return checkpoint(directory, sound | layer_0, quantization={"quant_method": method} | weights)


@pytest.mark.parametrize("method", ["fp8", "modelopt", "quark"])
def test_the_base_method_uses_both_scales(tmp_path: Path, method: str) -> None:
    found = resolved(base(tmp_path, method, k=0.5, v=0.125))
    assert values(found, 0, "k") == [0.5, 0.5]
    assert values(found, 0, "v") == [0.125, 0.125]
    assert found.notes == ()
    assert found.invalid_reason is None


def test_the_base_method_uses_one_where_both_are_missing(tmp_path: Path) -> None:
    found = resolved(base(tmp_path))
    assert values(found, 0, "k") + values(found, 0, "v") == [1.0] * 4
    (note,) = found.notes
    assert (note.kind, note.layers) == ("silent-default", (0,))
    assert found.scale(0, 0, "k").is_default
    assert not found.scale(1, 0, "k").is_default
    assert found.invalid_reason is None


@pytest.mark.parametrize("v", [0.0, NAN, -1.0, None])
def test_the_base_method_replaces_an_unusable_v_scale_by_k(tmp_path: Path, v: float | None) -> None:
    found = resolved(base(tmp_path, k=0.5, **({} if v is None else {"v": v})))
    assert values(found, 0, "v") == [0.5, 0.5]
    assert kinds(found) == ["duplicated"]


@pytest.mark.parametrize("k", [0.0, NAN, -1.0, None])
def test_the_base_method_dies_on_an_unusable_k_scale_beside_a_v_scale(
    tmp_path: Path, k: float | None
) -> None:
    found = resolved(base(tmp_path, v=0.5, **({} if k is None else {"k": k})))
    assert kinds(found) == ["crash"]
    with pytest.raises(InvalidCandidateError, match="bare assertion in layer 0"):
        found.require_valid()


def test_the_base_method_accepts_an_infinite_k_scale_and_the_candidate_is_invalid(tmp_path: Path) -> None:
    found = resolved(base(tmp_path, k=INF, v=0.5))
    assert values(found, 0, "k") == [INF, INF]
    assert found.notes == ()
    assert "the k scale of layer 0, KV head 0" in str(found.invalid_reason)


def test_the_base_method_takes_one_number_a_tensor(tmp_path: Path) -> None:
    found = resolved(base(tmp_path, k=[0.5, 0.5], v=0.5))  # type: ignore[arg-type]
    assert "shape [2]" in str(found.invalid_reason)
    assert "ValueError" in str(found.invalid_reason)


def test_a_merged_scale_serves_k_and_v_without_a_note() -> None:
    found = example("autofp8_kv_scale")
    assert values(found, 1, "k") == values(found, 1, "v")
    assert found.notes == ()


def test_fnuz_hardware_doubles_what_was_loaded_and_not_the_default(tmp_path: Path) -> None:
    found = resolved(base(tmp_path), fnuz=True)
    assert values(found, 1, "k") == [1.0, 1.0]
    assert values(found, 1, "v") == [0.5, 0.5]
    assert values(found, 0, "k") == [1.0, 1.0]
    tensors = resolved(compressed(tmp_path / "ct", {"0.k": [0.5], "0.v": [0.5]}), fnuz=True)
    assert values(tensors, 0, "k") == [0.5, 0.5]


def test_a_missing_q_scale_ends_as_one_although_the_log_says_otherwise(tmp_path: Path) -> None:
    found = resolved(base(tmp_path, k=0.5, v=0.5))
    assert values(found, 0, "q") == [1.0, 1.0]
    assert "it is not" in found.scale(0, 0, "q").origin


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "int8_per_token_head", "fp8_per_token_head"])
def test_a_cache_that_is_not_static_fp8_uses_one_whatever_the_checkpoint_says(
    tmp_path: Path, dtype: str
) -> None:
    for path in (
        base(tmp_path / "a", k=0.5, v=0.5),
        compressed(tmp_path / "b", {"0.k": [0.5], "0.v": [0.5]}),
    ):
        found = resolved(path, kv_cache_dtype=dtype)
        assert {s.value for s in found.scales.values()} == {1.0}
        assert kinds(found)[-1] == "not-fp8"


@pytest.mark.parametrize("value", [0.0, -0.5, NAN, INF])
def test_compressed_tensors_loads_any_value_and_the_candidate_is_invalid(
    tmp_path: Path, value: float
) -> None:
    path = compressed(tmp_path, {"0.k": [0.5], "0.v": [value], "1.k": [0.5], "1.v": [0.5]})
    found = resolved(path)
    assert found.notes == ()
    reason = str(found.invalid_reason)
    assert reason.startswith(
        f"{path}: the v scale of layer 0, KV head 0 (model.safetensors:model.layers.0.self_attn.v_scale) is "
    )
    assert "a scale is a finite number > 0" in reason


def test_compressed_tensors_uses_one_silently_for_a_missing_layer(tmp_path: Path) -> None:
    found = resolved(compressed(tmp_path, {"0.k": [0.5], "0.v": [0.25], "1.k": [0.5]}))
    assert values(found, 1, "k") == [0.5, 0.5]
    assert values(found, 1, "v") == [1.0, 1.0]
    (note,) = found.notes
    assert (note.kind, note.layers) == ("silent-default", (1,))
    assert note.text == "no v scale is loaded: vLLM uses 1.0 without a warning in layer 1"


def test_old_compressed_tensors_names_are_dropped_and_one_is_used(tmp_path: Path) -> None:
    names = {f"model.layers.{n}.self_attn.{t}_proj.output_scale": 0.5 for n in (0, 1) for t in "kv"}
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme()}
    found = resolved(checkpoint(tmp_path, names, quantization=quantization))
    assert {s.value for s in found.scales.values()} == {1.0}
    assert "silent-default" in kinds(found)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_bits": 4}, "'float' with 4 bits"),
        ({"type": "int"}, "'int' with 8 bits"),
        ({"strategy": "channel"}, "strategy 'channel'"),
        ({"symmetric": False}, "symmetric False"),
    ],
)
def test_a_scheme_that_vllm_refuses_is_invalid(tmp_path: Path, fields: dict, text: str) -> None:
    found = resolved(compressed(tmp_path, {"0.k": [0.5], "0.v": [0.5], "1.k": [0.5], "1.v": [0.5]}, **fields))
    assert text in str(found.invalid_reason)


def test_a_dynamic_scheme_ends_as_fp8_with_one(tmp_path: Path) -> None:
    path = checkpoint(
        tmp_path,
        {"model.layers.0.self_attn.k_proj.weight": 1.0},
        quantization={"quant_method": "compressed-tensors", "kv_cache_scheme": scheme(dynamic=True)},
    )
    found = resolved(path)
    assert {s.value for s in found.scales.values()} == {1.0}
    assert any("dynamic" in note.text for note in found.notes_of("silent-default"))


def test_a_method_without_kv_scales_uses_one(tmp_path: Path) -> None:
    path = checkpoint(
        tmp_path, {"model.layers.0.self_attn.k_scale": [0.5]}, quantization={"quant_method": "awq"}
    )
    found = resolved(path)
    assert {s.value for s in found.scales.values()} == {1.0}
    assert "'awq'" in found.notes_of("silent-default")[0].text


@pytest.mark.parametrize(
    ("quantization", "is_refused"),
    [
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic"},
            True,
        ),  # by its weights, whatever it declares
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, True),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": scheme()}, True),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, False),
        ({"quant_method": "awq", "bits": 4}, False),
    ],
)
def test_fp8_e5m2_is_refused_where_vllm_loads_scales_by_the_method_of_the_weights(
    tmp_path: Path, quantization: dict[str, Any], is_refused: bool
) -> None:
    names = {f"model.layers.{n}.self_attn.{t}_scale": 0.5 for n in range(2) for t in "kv"}
    path = checkpoint(tmp_path, names, quantization=quantization)
    found = resolve(load_artifact(path), num_layers=2, kv_heads_per_layer=2, kv_cache_dtype="fp8_e5m2")
    refused = [note for note in found.notes_of("crash") if "fp8_e5m2 is refused" in note.text]
    assert bool(refused) is is_refused


PER_HEAD = {"0.k": [[[0.1]], [[0.2]], [[0.3]], [[0.4]]], "0.v": [[[1.0]], [[2.0]], [[3.0]], [[4.0]]]}
FOUR_HEADS = {"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4}


def per_head(directory: Path, scales: dict | None = None, **setup: Any) -> ResolvedScales:
    tensors = {f"model.layers.0.self_attn.{key[-1]}_scale": v for key, v in (scales or PER_HEAD).items()}
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme(strategy="attn_head")}
    path = checkpoint(directory, tensors, quantization=quantization, model=FOUR_HEADS)
    return resolve(load_artifact(path), num_layers=1, kv_heads_per_layer=4, **setup)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_per_head_scales_stay_with_their_heads_for_any_number_of_ranks(tmp_path: Path, tp: int) -> None:
    found = per_head(tmp_path, tp=tp)
    assert values(found, 0, "k", 4) == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-6)
    assert found.granularity == "attn_head"
    assert found.notes == ()


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (1, [4.0, 4.0, 4.0, 4.0]),
        (2, [2.0, 2.0, 4.0, 4.0]),
        (4, [1.0, 2.0, 3.0, 4.0]),
        (8, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_a_backend_with_one_scale_takes_the_maximum_over_each_ranks_heads(
    tmp_path: Path, tp: int, expected: list[float]
) -> None:
    found = per_head(tmp_path, tp=tp, backend="FLASHINFER")
    assert values(found, 0, "v", 4) == expected
    assert kinds(found) == (["collapsed"] if tp < 4 else [])
    assert found.granularity == ("tensor" if tp < 4 else "attn_head")
    assert found.invalid_reason is None


@pytest.mark.parametrize("backend", [None, "FLASH_ATTN", "FlashAttention", "FLASH_ATTN_VLLM_V1"])
def test_flash_attention_honours_scales_per_head(tmp_path: Path, backend: str | None) -> None:
    assert values(per_head(tmp_path, backend=backend), 0, "v", 4) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("backend", ["FLASHINFER", "TRITON_ATTN", "CPU_ATTN", "FLASH_ATTN_MLA"])
def test_other_backends_do_not(tmp_path: Path, backend: str) -> None:
    assert values(per_head(tmp_path, backend=backend), 0, "v", 4) == [4.0] * 4


def test_a_nan_head_makes_the_maximum_nan_as_in_torch(tmp_path: Path) -> None:
    scales = PER_HEAD | {"0.k": [0.1, NAN, 0.3, 0.4]}
    assert all(math.isnan(v) for v in values(per_head(tmp_path, scales, backend="CPU_ATTN"), 0, "k", 4))


def test_q_is_the_maximum_over_each_group_of_query_heads(tmp_path: Path) -> None:
    found = per_head(tmp_path, PER_HEAD | {"0.q": [1.0, 5.0, 2.0, 2.0, 8.0, 3.0, 0.5, 0.25]})
    assert values(found, 0, "q", 4) == [5.0, 2.0, 8.0, 0.5]


def test_one_value_under_attn_head_serves_one_rank_and_stops_the_second(tmp_path: Path) -> None:
    one = {"0.k": [0.5], "0.v": [0.25]}
    assert values(per_head(tmp_path, one, tp=1), 0, "k", 4) == [0.5] * 4
    assert "rank 1 of 2 finds 0 for its 2" in str(per_head(tmp_path, one, tp=2).invalid_reason)


def test_several_values_under_the_tensor_strategy_stop_the_engine(tmp_path: Path) -> None:
    found = resolved(compressed(tmp_path, {f"{n}.{t}": [0.5, 0.5] for n in (0, 1) for t in "kv"}))
    assert "shape assertion" in str(found.invalid_reason)


@pytest.mark.parametrize("tp", [3, 6])
def test_heads_that_cannot_be_split_over_the_ranks_are_refused(tmp_path: Path, tp: int) -> None:
    with pytest.raises(InvalidCandidateError, match=rf"4 KV heads cannot be split over {tp} "):
        per_head(tmp_path, tp=tp)


def test_a_file_per_rank_gives_each_ranks_heads_its_value() -> None:
    found = example("trtllm_tp2")
    assert values(found, 0, "k") == pytest.approx([16.5 / 448, 9.25 / 448], rel=1e-6)
    assert values(found, 1, "v") == pytest.approx([3.125 / 448, 0.875 / 448], rel=1e-6)
    merged = example("vllm_json_tp2")
    assert (
        values(merged, 1, "k")
        == values(merged, 1, "v")
        == pytest.approx([12.125 / 448, 30.75 / 448], rel=1e-6)
    )


def test_another_number_of_ranks_than_the_file_has_stops_vllm_and_makes_sglang_use_one() -> None:
    assert "scales for ranks [0, 1], the engine runs 1" in str(example("vllm_json_tp2", tp=1).invalid_reason)
    sglang = example("vllm_json_tp2", tp=1, loader="sglang")
    assert {s.value for s in sglang.scales.values()} == {1.0}
    assert sglang.invalid_reason is None
    assert "SGLang logs an error and uses 1.0 everywhere" in str(sglang.note)


@pytest.mark.parametrize("name", ["ct_per_tensor", "modelopt_fp8"])
def test_vllm_alone_refuses_e5m2_with_scales_of_a_checkpoint(name: str) -> None:
    refused = example(name, loader="vllm-cuda", kv_cache_dtype="fp8_e5m2")
    assert "fp8_e5m2 is refused by vLLM" in str(refused.invalid_reason)
    taken = example(name, loader="sglang", kv_cache_dtype="fp8_e5m2")
    assert taken.invalid_reason is None
    assert values(taken, 0, "k") == values(example(name, loader="sglang"), 0, "k") != [1.0, 1.0]


def test_sglang_reads_its_json_for_an_e4m3_cache_alone() -> None:
    sound = example("sglang_json", loader="sglang")
    assert values(sound, 0, "k") == pytest.approx([16.5 / 448] * 2, rel=1e-6)
    found = example("sglang_json", loader="sglang", kv_cache_dtype="fp8_e5m2")
    assert found.invalid_reason is None
    assert {scale.value for scale in found.scales.values()} == {1.0}
    assert "SGLang reads the file for an fp8_e4m3 cache alone: 1.0 is used" in str(found.note)


def test_sglang_uses_one_without_a_model_type(tmp_path: Path) -> None:
    document = json.loads((ARTIFACTS / "sglang_json" / "kv_scales.json").read_text())
    file = tmp_path / "kv.json"
    file.write_text(json.dumps(document))
    sound = resolve(load_artifact(file, "sglang-json"), num_layers=3, kv_heads_per_layer=2)
    assert values(sound, 0, "k") == pytest.approx([16.5 / 448] * 2, rel=1e-6)
    del document["model_type"]
    file.write_text(json.dumps(document))
    found = resolve(load_artifact(file, "sglang-json"), num_layers=3, kv_heads_per_layer=2)
    assert {s.value for s in found.scales.values()} == {1.0}
    assert "model_type is missing" in str(found.note)


def test_vllm_does_not_read_a_tensorrt_llm_checkpoint() -> None:
    assert "a TensorRT-LLM checkpoint is given to vllm" in str(
        example("trtllm_tp2", loader="vllm").invalid_reason
    )


def test_the_engine_may_be_given_by_its_numerics_name() -> None:
    assert example("ct_per_tensor", loader="vllm-cuda").setup.loader.name == "vllm"
    with pytest.raises(InvalidCandidateError, match=r"engine 'llama\.cpp'; there are vllm, sglang, "):
        example("ct_per_tensor", loader="llama.cpp")


@pytest.mark.parametrize(
    ("num_layers", "heads", "text"),
    [
        (4, 2, "its config.json has 3 layers, the model has 4"),
        (2, 2, "holds scales for layer 2, the model's last layer is 1"),
        (3, 4, "its config.json has 2 KV heads, the model has 4"),
    ],
)
def test_an_artifact_of_another_model_is_invalid(num_layers: int, heads: int, text: str) -> None:
    artifact = load_artifact(ARTIFACTS / "ct_per_head")
    reason = resolve(artifact, num_layers=num_layers, kv_heads_per_layer=heads).invalid_reason
    assert text in str(reason)
    assert "was the artifact calibrated on another model?" in str(reason)


def test_a_file_of_scales_alone_is_of_another_model_where_layers_or_heads_differ(tmp_path: Path) -> None:
    tensors = {"model.layers.0.self_attn.k_scale": [0.5] * 3, "model.layers.0.self_attn.v_scale": [0.5] * 3}
    artifact = load_artifact(checkpoint(tmp_path, tensors, model={}))
    reason = str(resolve(artifact, num_layers=2, kv_heads_per_layer=2).invalid_reason)
    assert "holds scales for 1 layers, the model has 2" in reason
    assert "model.layers.0.self_attn.k_scale has 3 heads, the model has 2" in reason


def test_names_that_match_nothing_are_in_the_note(tmp_path: Path) -> None:
    names = {"model.layers.0.self_attn.key_scale": 0.5, "model.layers.1.self\x1b[31m_attn.key_scale": 0.5}
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme()}
    found = resolved(checkpoint(tmp_path, names, quantization=quantization))
    (note,) = found.notes_of("dropped-name")
    assert note.text.startswith(
        "2 names match no rule and are loaded by nothing (vLLM 0.32 stops at such a name): "
    )
    assert "\x1b" not in note.text
