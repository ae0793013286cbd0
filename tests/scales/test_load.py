"""Every example artifact is read to the values that its absmax.json gives by hand."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints import checkpoint, scheme

from kvtrace.calibration.save import save_scales
from kvtrace.errors import ArtifactError
from kvtrace.scales import load_artifact

INDEX = "model.safetensors.index.json"
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
ABSMAX = json.loads((ARTIFACTS / "absmax.json").read_text())
K, V, Q = (np.array(ABSMAX[name]) for name in ("KMAX", "VMAX", "QMAX"))


def bf16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def f32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)


def autofp8(absmax: np.ndarray) -> np.ndarray:
    """The reciprocal, in float32, of 448 / absmax rounded to bfloat16."""
    return f32(np.float32(1) / (448 / absmax).astype(ml_dtypes.bfloat16).astype(np.float32))


LARGER = np.maximum(K, V).max(axis=1)
EXPECTED = {
    "ct_per_tensor": ("compressed-tensors", "tensor", {"k": bf16(K.max(1) / 448), "v": bf16(V.max(1) / 448)}),
    "ct_per_head": (
        "compressed-tensors",
        "attn_head",
        {"k": bf16(K / 448), "v": bf16(V / 448), "q": bf16(Q / 448)},
    ),
    "modelopt_fp8": ("modelopt", "tensor", {"k": f32(K.max(1) / 448), "v": f32(V.max(1) / 448)}),
    "modelopt_nvfp4_kv": ("modelopt-nvfp4", "tensor", {"k": f32(K.max(1) / 448), "v": f32(V.max(1) / 448)}),
    "quark": ("quark", "tensor", {"k": f32(LARGER / 448), "v": f32(LARGER / 448)}),
    "autofp8_kv_scale": ("autofp8-kv", "tensor", {"kv": autofp8(LARGER)}),
    "autofp8_k_v_scale": ("autofp8", "tensor", {"k": autofp8(K.max(1)), "v": autofp8(V.max(1))}),
    "vllm_json_tp1": ("vllm-json", "tensor", {"kv": f32(LARGER / 448)}),
    "sglang_json": ("vllm-json", "tensor", {"kv": f32(LARGER / 448)}),
    "defaults_only": ("none", "tensor", {}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_read_to_the_values_of_its_absmax(name: str) -> None:
    form, granularity, tensors = EXPECTED[name]
    artifact = load_artifact(ARTIFACTS / name)
    assert (artifact.format.name, artifact.granularity, artifact.unmatched) == (form, granularity, ())
    assert len(artifact.scales) == sum(len(values) for values in tensors.values())
    for tensor, values in tensors.items():
        for layer in range(3):
            (scale,) = artifact.stored(layer, tensor)
            assert scale.values == tuple(np.atleast_1d(values[layer]).tolist())


@pytest.mark.parametrize("name", ["vllm_json_tp2", "trtllm_tp2"])
def test_a_format_with_one_scale_per_rank_keeps_the_ranks_apart(name: str) -> None:
    artifact = load_artifact(ARTIFACTS / name)
    merged = name.startswith("vllm")
    assert artifact.num_ranks == 2
    for layer in range(3):
        for tensor, absmax in (("kv", np.maximum(K, V)),) if merged else (("k", K), ("v", V)):
            by_rank = {s.rank: s.values for s in artifact.stored(layer, tensor)}
            assert by_rank == {rank: (f32(absmax / 448)[layer, rank],) for rank in (0, 1)}


def test_every_value_says_where_it_was_read_and_how_it_was_stored() -> None:
    (scale,) = load_artifact(ARTIFACTS / "ct_per_head").stored(1, "k")
    assert scale.origin == "model.safetensors:model.layers.1.self_attn.k_scale"
    assert (scale.dtype, scale.shape) == ("BF16", (2, 1, 1))
    (scale,) = load_artifact(ARTIFACTS / "modelopt_fp8").stored(1, "k")
    assert (scale.dtype, scale.shape) == ("F32", ())


@pytest.mark.parametrize(
    ("quantization", "prefix", "form"),
    [
        ({"quant_method": "compressed-tensors"}, "k_proj.output_scale", "compressed-tensors-old"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "k_scale", "modelopt-megatron"),
        ({"quant_method": "fp8"}, "k_proj.output_scale", "autofp8"),
        ({"quant_method": "quark"}, "prob_output_scale", "quark"),
    ],
)  # fmt: skip
def test_the_format_follows_from_the_configuration_and_the_names(
    tmp_path: Path, quantization: dict, prefix: str, form: str
) -> None:
    path = checkpoint(tmp_path / "c", {f"model.layers.0.self_attn.{prefix}": 1.5}, quantization=quantization)
    artifact = load_artifact(path)
    assert artifact.format.name == form
    assert [s.values for s in artifact.scales] == [(1.5,)]


def test_megatron_names_under_mixer_are_read(tmp_path: Path) -> None:
    names = {"backbone.layers.7.mixer.k_proj.k_scale": 1.0, "backbone.layers.7.mixer.v_proj.v_scale": 2.0}
    path = checkpoint(tmp_path / "c", names, quantization={"quant_method": "modelopt"})
    artifact = load_artifact(path)
    assert artifact.format.name == "modelopt-megatron"
    assert {(s.layer, s.tensor): s.values for s in artifact.scales} == {(7, "k"): (1.0,), (7, "v"): (2.0,)}


def test_a_file_of_scales_without_a_configuration_is_read_by_its_names(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c", {"model.layers.0.self_attn.k_scale": [0.5]}, model={})
    artifact = load_artifact(path / "model.safetensors")
    assert artifact.format.name == "compressed-tensors"
    assert artifact.model.num_layers is None


def test_names_that_match_no_rule_are_kept_and_weight_scales_are_not(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.k_scale": 0.5,
        "model.layers.0.self_attn.key_scale": 0.5,
        "model.layers.0.attention.v_cache_scale": 0.5,
        "model.layers.0.self_attn.v_proj.v_scale_inv": 0.5,
        "model.layers.0.self_attn.v_scale_1": 0.5,
        "model.layers.0.self_attn.v_scale.weight": 0.5,
        "model.layers.0.self_attn.V_Scale": 0.5,
        "model.layers.0.self_attn.k_proj.weight_scale_2": 0.5,
        "model.layers.0.self_attn.k_proj.weight_scale": 0.5,
        "model.layers.0.self_attn.k_proj.input_scale": 0.5,
        "model.layers.0.self_attn.k_proj.weight_scale_inv": 0.5,
        "model.layers.0.self_attn.k_zero_point": 0.0,
        "model.layers.0.input_layernorm.weight": 0.5,
    }
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme()}
    artifact = load_artifact(checkpoint(tmp_path / "c", tensors, quantization=quantization))
    assert [u.name for u in artifact.unmatched] == sorted(
        [
            "model.layers.0.self_attn.key_scale",
            "model.layers.0.attention.v_cache_scale",
            "model.layers.0.self_attn.v_proj.v_scale_inv",
            "model.layers.0.self_attn.v_scale_1",
            "model.layers.0.self_attn.v_scale.weight",
            "model.layers.0.self_attn.V_Scale",
        ]
    )
    assert [s.key for s in artifact.scales] == ["model.layers.0.self_attn.k_scale"]


def test_a_scale_of_no_float_dtype_or_without_a_layer_is_reported_not_read(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.k_scale": torch.tensor([1], dtype=torch.int32),
        "model.self_attn.k_scale": torch.tensor([1.0]),
        "model.layers.0.experts.1.self_attn.k_scale": torch.tensor([1.0]),
        "model.layers.1.self_attn.k_scale": torch.zeros(0),
    }
    artifact = load_artifact(checkpoint(tmp_path / "c", tensors, model={}))
    assert artifact.scales == ()
    assert {u.name for u in artifact.unmatched} == set(tensors)


def test_a_vision_towers_scales_are_reported_and_do_not_stand_for_the_text_models(tmp_path: Path) -> None:
    text = {f"language_model.layers.{n}.self_attn.k_scale": [0.5 + n] for n in range(3)}
    vision = {f"vision_tower.layers.{n}.self_attn.k_scale": [8.0] for n in range(2)}
    artifact = load_artifact(checkpoint(tmp_path / "c", vision | text, model={}))
    assert {s.layer: s.values for s in artifact.scales} == {0: (0.5,), 1: (1.5,), 2: (2.5,)}
    assert {u.name for u in artifact.unmatched} == set(vision)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_float_dtype_is_read_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([0.0369, 2.5e-4, 448.0], dtype=dtype)
    path = checkpoint(tmp_path / "c", {"model.layers.0.self_attn.k_scale": values}, model={})
    assert list(load_artifact(path).scales[0].values) == values.double().tolist()


def test_of_a_sharded_checkpoint_the_files_that_the_index_names_are_read(tmp_path: Path) -> None:
    weight_map = {}
    for shard in range(100):
        tensors = {f"model.layers.{shard}.mlp.experts.{e}.up_proj.weight": torch.zeros(4) for e in range(64)}
        tensors[f"model.layers.{shard}.self_attn.k_scale"] = torch.tensor([0.01 * (shard + 1)])
        tensors[f"model.layers.{shard}.self_attn.v_scale"] = torch.tensor([0.5])
        name = f"model-{shard + 1:05}-of-00100.safetensors"
        save_file(tensors, tmp_path / name)
        weight_map |= dict.fromkeys(tensors, name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "left-over.safetensors").write_bytes(b"not read: the index does not name it")
    artifact = load_artifact(tmp_path)
    assert artifact.layers == tuple(range(100))
    assert artifact.stored(41, "k")[0].file == "model-00042-of-00100.safetensors"


def test_the_digest_is_over_the_scales_and_not_over_how_they_are_split_into_files(tmp_path: Path) -> None:
    names = [f"model.layers.{n}.self_attn.{t}_scale" for n in range(2) for t in "kv"]
    whole = checkpoint(tmp_path / "a", dict.fromkeys(names, 0.5))
    split = checkpoint(tmp_path / "b", {names[0]: 0.5}, file="1.safetensors")
    checkpoint(split, dict.fromkeys(names[1:], 0.5), file="2.safetensors")
    other = checkpoint(tmp_path / "c", dict.fromkeys(names, 0.5000001))
    assert load_artifact(whole).sha256 == load_artifact(split).sha256 != load_artifact(other).sha256


def test_the_format_can_be_forced(tmp_path: Path) -> None:
    assert load_artifact(ARTIFACTS / "sglang_json", "sglang-json").format.name == "sglang-json"
    with pytest.raises(ArtifactError, match=r"no artifact format is called 'gguf'; there are vllm-json, "):
        load_artifact(ARTIFACTS / "sglang_json", "gguf")
    with pytest.raises(ArtifactError, match=r"no kv_cache\.scaling_factor"):
        load_artifact(ARTIFACTS / "ct_per_tensor", "vllm-json")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no .safetensors file; expected a checkpoint directory"),
        ({"pytorch_model.bin": b"\x80\x04"}, "pytorch_model.bin is pickled and never opened"),
        ({"m.safetensors": b"abc"}, "is 3 bytes long"),
        ({"m.safetensors": b"\xff" * 16}, "says its header has 18,446,744,073,709,551,615 bytes"),
        ({"m.safetensors": b"\x02" + bytes(7) + b"[]"}, "header is not a JSON object"),
        ({"m.safetensors": b"\x02" + bytes(7) + b"\xff\xfe"}, "is not valid JSON"),
        ({INDEX: b"{}"}, "has no weight_map"),
        ({INDEX: b'{"weight_map": {"a": "../x.safetensors"}}'}, "expected a .safetensors file beside it"),
        ({INDEX: b'{"weight_map": {"a": "x.safetensors"}}'}, "names 'x.safetensors', which is not there"),
        ({"kv.json": b'{"kv_cache": {"scaling_factor": {"0": {"x": 1.0}}}}'}, "'x' in kv_cache.scaling"),
        ({"kv.json": b'{"kv_cache": {"scaling_factor": {"0": {"1": "a"}}}}'}, "layer 1 is 'a', not a"),
        ({"kv.json": b"[" * 100_000}, "nests too deeply"),
        ({"kv.json": b"9" * 10_000}, "is not valid JSON"),
        ({"kv.json": b'{"a": 1, "a": 2}'}, "has the same key twice"),
        ({"kv.json": b"[]"}, "is not a JSON object"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line_that_names_the_file(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtifactError) as error:
        load_artifact(tmp_path)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such file or directory"):
        load_artifact(tmp_path / "absent")
    (tmp_path / "scales.pkl").write_bytes(b"")
    with pytest.raises(ArtifactError, match="pickled files are never opened"):
        load_artifact(tmp_path / "scales.pkl")


def test_scales_in_a_file_that_the_index_does_not_name_are_reported_and_not_used(tmp_path: Path) -> None:
    save_scales(tmp_path / "a", {(0, "k"): [0.5], (0, "v"): [0.25]})
    (tmp_path / "a" / "model.safetensors").write_bytes(
        (8).to_bytes(8, "little") + b"{}      "  # the weights' file, with no tensor
    )
    (tmp_path / "a" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": "model.safetensors"}})
    )
    artifact = load_artifact(tmp_path / "a")
    assert artifact.scales == ()
    assert [unmatched.name for unmatched in artifact.unmatched] == [
        "model.layers.0.self_attn.k_scale",
        "model.layers.0.self_attn.v_scale",
    ]
    assert "index does not name its file" in artifact.unmatched[0].reason
