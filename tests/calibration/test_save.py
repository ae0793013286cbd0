"""Scales that kvtrace writes: what other readers find in the files, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.checkpoints import checkpoint, compressed, scheme
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.calibration.bfloat16 import nearest_bfloat16
from kvtrace.calibration.save import save_checkpoint, save_scales
from kvtrace.calibration.sglang_file import sglang_document
from kvtrace.errors import InputError, OutputExistsError
from kvtrace.scales import load_artifact, resolve
from kvtrace.trace.fingerprint import weights_digest

if TYPE_CHECKING:
    from pathlib import Path

PER_TENSOR = {(layer, tensor): (0.03 + layer,) for layer in range(2) for tensor in "kv"}
PER_HEAD = {(layer, tensor): (0.03 + layer, 0.5) for layer in range(2) for tensor in "kv"}
WEIGHTS = {f"model.layers.{n}.self_attn.k_proj.weight": torch.ones(16, 8) for n in range(2)}


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=0, max_value=2.0**120))
def test_rounding_to_bfloat16_is_that_of_an_independent_library(value: float) -> None:
    assert nearest_bfloat16([value])[0] == np.float32(value).astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize(("scales", "shape"), [(PER_TENSOR, [1]), (PER_HEAD, [2, 1, 1])])
def test_the_safetensors_library_reads_what_was_written(tmp_path: Path, scales: dict, shape: list) -> None:
    save_scales(tmp_path / "s", scales, model={"num_hidden_layers": 2, "num_key_value_heads": 2})
    tensors = load_file(tmp_path / "s" / "model-kv-scales.safetensors")
    assert set(tensors) == {f"model.layers.{n}.self_attn.{t}_scale" for n in range(2) for t in "kv"}
    for (layer, tensor), values in scales.items():
        found = tensors[f"model.layers.{layer}.self_attn.{tensor}_scale"]
        assert found.dtype == torch.bfloat16
        assert list(found.shape) == shape
        assert torch.equal(found.flatten(), torch.tensor(values).bfloat16())


def test_what_was_written_loads_back_and_resolves(tmp_path: Path) -> None:
    save_scales(
        tmp_path / "s", PER_HEAD, model={"num_hidden_layers": 2, "num_key_value_heads": 2}, manifest={"a": 1}
    )
    artifact = load_artifact(tmp_path / "s")
    assert (artifact.format.name, artifact.granularity) == ("compressed-tensors", "attn_head")
    assert artifact.manifest == {"a": 1, "scales_sha256": artifact.sha256}
    found = resolve(artifact, num_layers=2, kv_heads_per_layer=2)
    assert found.notes == ()
    assert found.scale(1, 0, "k").value == float(nearest_bfloat16([1.03])[0])


def test_the_configuration_keeps_the_model_and_declares_the_scheme(tmp_path: Path) -> None:
    save_scales(tmp_path / "s", PER_TENSOR, model={"model_type": "llama", "num_hidden_layers": 2})
    config = json.loads((tmp_path / "s" / "config.json").read_text())
    assert config["model_type"] == "llama"
    found = config["quantization_config"]
    assert found["quant_method"] == "compressed-tensors"
    expected = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    assert found["kv_cache_scheme"].items() >= expected.items()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 3.4e38, 1e-42])
def test_a_scale_that_no_engine_can_use_is_not_written(tmp_path: Path, bad: float) -> None:
    with pytest.raises(InputError, match="expected finite numbers > 0"):
        save_scales(tmp_path / "s", PER_TENSOR | {(1, "v"): (bad,)})
    assert not (tmp_path / "s").exists()


def test_mixed_granularities_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one checkpoint has one strategy"):
        save_scales(tmp_path / "s", PER_TENSOR | {(1, "v"): (0.5, 0.5)})


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    save_scales(tmp_path / "s", PER_TENSOR)
    before = {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()}
    with pytest.raises(OutputExistsError, match="nothing is overwritten"):
        save_scales(tmp_path / "s", PER_HEAD)
    assert {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_deployable_copy_links_the_weights_and_leaves_the_original_alone(tmp_path: Path) -> None:
    original = checkpoint(tmp_path / "model", WEIGHTS)
    (original / "tokenizer.json").write_text("{}")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in original.iterdir()}
    save_checkpoint(tmp_path / "copy", original, PER_HEAD, manifest={"kind": "test"})
    copy = tmp_path / "copy"
    assert {p.name for p in copy.iterdir() if p.is_symlink()} == {"model.safetensors", "tokenizer.json"}
    assert (copy / "model.safetensors").resolve() == (original / "model.safetensors").resolve()
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in original.iterdir()} == before
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {"model.safetensors", "model-kv-scales.safetensors"}
    assert set(index["weight_map"]) == set(WEIGHTS) | {
        f"model.layers.{n}.self_attn.{t}_scale" for n in range(2) for t in "kv"
    }
    assert load_artifact(copy).layers == (0, 1)


def test_scales_take_the_name_of_the_models_own_attention_modules(tmp_path: Path) -> None:
    weights = {f"language_model.model.layers.{n}.self_attn.qkv_proj.weight": torch.ones(2) for n in range(2)}
    save_checkpoint(tmp_path / "copy", checkpoint(tmp_path / "model", weights), PER_TENSOR)
    keys = {s.key for s in load_artifact(tmp_path / "copy").scales}
    assert keys == {f"language_model.model.layers.{n}.self_attn.{t}_scale" for n in range(2) for t in "kv"}


def test_scales_that_the_checkpoint_already_has_in_a_file_of_their_own_are_replaced(tmp_path: Path) -> None:
    original = checkpoint(tmp_path / "model", WEIGHTS)
    save_checkpoint(tmp_path / "first", original, PER_TENSOR)
    save_checkpoint(tmp_path / "second", tmp_path / "first", PER_HEAD)
    artifact = load_artifact(tmp_path / "second")
    assert artifact.granularity == "attn_head"
    assert (tmp_path / "second" / "model.safetensors").resolve() == (original / "model.safetensors").resolve()


def test_a_file_with_scales_among_its_weights_is_copied_without_them(tmp_path: Path) -> None:
    old = {f"model.layers.{n}.self_attn.{t}_scale": [0.5] for n in range(2) for t in "kv"}
    weights = {name: torch.randn(16, 8, dtype=torch.bfloat16) for name in WEIGHTS}
    original = checkpoint(tmp_path / "model", weights | old)
    (original / "tokenizer.json").write_text("{}")
    saved = save_checkpoint(tmp_path / "copy", original, PER_TENSOR)
    assert (saved.num_linked, saved.copied) == (1, ("model.safetensors",))
    kept = load_file(tmp_path / "copy" / "model.safetensors")
    assert kept.keys() == weights.keys()
    assert all(torch.equal(kept[name], weights[name]) for name in weights)
    artifact = load_artifact(tmp_path / "copy")
    assert {s.values for s in artifact.scales} == {(s,) for s in nearest_bfloat16([0.03, 1.03]).tolist()}
    assert load_file(original / "model.safetensors").keys() == weights.keys() | old.keys()
    assert weights_digest(tmp_path / "copy") == weights_digest(original)


def test_scales_without_weights_are_no_checkpoint(tmp_path: Path) -> None:
    only = compressed(tmp_path / "only", {"0.k": [0.5]})
    with pytest.raises(InputError, match="holds no weights"):
        save_checkpoint(tmp_path / "copy", only, PER_TENSOR)
    assert not (tmp_path / "copy").exists()


def test_a_method_with_rules_of_its_own_is_refused_and_compressed_tensors_is_extended(tmp_path: Path) -> None:
    gptq = checkpoint(tmp_path / "gptq", WEIGHTS, quantization={"quant_method": "gptq"})
    with pytest.raises(InputError, match="quantized with 'gptq', for which vLLM loads no KV-cache scales"):
        save_checkpoint(tmp_path / "copy", gptq, PER_TENSOR)
    groups = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {}},
        "kv_cache_scheme": scheme(),
    }
    quantized = checkpoint(tmp_path / "ct", WEIGHTS, quantization=groups)
    save_checkpoint(tmp_path / "copy", quantized, PER_HEAD)
    found = json.loads((tmp_path / "copy" / "config.json").read_text())["quantization_config"]
    assert found["config_groups"] == {"group_0": {}}
    assert found["kv_cache_scheme"]["strategy"] == "attn_head"


def test_scales_are_named_as_the_language_models_layers_whatever_towers_and_draft_heads_there_are(
    tmp_path: Path,
) -> None:
    prefix = "model.language_model.layers"
    others = ["model.vision_tower.encoder.layers", "mtp.layers"]
    names = [f"{prefix}.{n}.self_attn.k_proj.weight_packed" for n in range(2)]
    names += [f"{other}.{n}.self_attn.k_proj.weight" for other in others for n in range(3)]
    # Layer 2 reads the cache of layer 1, and has no projection for K.
    scales = {(layer, tensor): (0.25,) for layer in range(3) for tensor in "kv"}
    model = {
        "text_config": {"num_hidden_layers": 3, "num_kv_shared_layers": 1, "num_key_value_heads": 2},
        "vision_config": {"num_hidden_layers": 3},
    }
    original = checkpoint(tmp_path / "model", dict.fromkeys(names, 1.0), model=model)
    save_checkpoint(tmp_path / "copy", original, scales)
    written = {f"{prefix}.{n}.self_attn.{t}_scale" for n in range(3) for t in "kv"}
    assert load_file(tmp_path / "copy" / "model-kv-scales.safetensors").keys() == written
    index = json.loads((tmp_path / "copy" / "model.safetensors.index.json").read_text())["weight_map"]
    assert {name for name, file in index.items() if file == "model-kv-scales.safetensors"} == written
    assert {name for name, file in index.items() if file == "model.safetensors"} == set(names)


def _trace_of_two_layers(path: Path) -> Path:
    values = np.linspace(-4, 4, 8 * 2 * 8, dtype=np.float32).reshape(8, 2, 8)
    return fabricate_trace(
        path,
        {(layer, tensor): values * (layer + 1) for layer in range(2) for tensor in "kv"},
        request_of_row=[row // 2 for row in range(8)],
        position_of_row=[row % 2 for row in range(8)],
        requests=[request(number, prompt_tokens=2) for number in range(4)],
        model={"hf_config": {"model_type": "llama"}},
    )


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_weights_beside_which_vllm_loads_no_scales_are_linked_beside_sglangs_file(
    tmp_path: Path, method: str
) -> None:
    trace = _trace_of_two_layers(tmp_path / "t.kvtrace")
    names = {f"model.layers.{n}.self_attn.k_proj.qweight": torch.ones(2, 2) for n in range(2)}
    original = checkpoint(tmp_path / "model", names, quantization={"quant_method": method})
    asked = ("calibrate", trace, "-o", tmp_path / "new", "--checkpoint", original)
    refused = kvtrace(*asked)
    assert refused.returncode == 2
    assert "give --sglang-json RANKS too" in refused.stderr
    done = kvtrace(*asked, "--sglang-json", "1")
    assert done.returncode == 0, done.stderr
    assert "vLLM loads no KV-cache scales beside such weights" in done.stdout
    assert "vllm serve" not in done.stdout
    new = tmp_path / "new"
    assert {file.name for file in new.iterdir()} == {
        "config.json",
        "model.safetensors",
        "kv_cache_scales.json",
    }
    assert (new / "config.json").read_text() == (original / "config.json").read_text()
    found = resolve(
        load_artifact(new / "kv_cache_scales.json", "sglang-json"), num_layers=2, kv_heads_per_layer=2
    )
    assert found.notes_of("silent-default", "crash") == ()
    expected = torch.tensor([4 / 448, 8 / 448]).bfloat16().tolist()
    assert [found.scale(n, 0, "k").value for n in range(2)] == expected


PRODUCERS = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    "quark": {
        "quant_method": "quark",
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "layer_quant_config": {},
        "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}, "output_tensors": None},
        "exclude": [],
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
}


@pytest.mark.parametrize("method", PRODUCERS)
def test_other_producers_checkpoints_get_scales_that_vllm_applies_as_written(
    tmp_path: Path, method: str
) -> None:
    original = checkpoint(tmp_path / "model", WEIGHTS, quantization=PRODUCERS[method])
    save_checkpoint(tmp_path / "copy", original, PER_TENSOR)
    artifact = load_artifact(tmp_path / "copy")
    found = resolve(artifact, num_layers=2, kv_heads_per_layer=2)
    assert found.invalid_reason is None
    assert {key: found.scale(key[0], 0, key[1]).value for key in PER_TENSOR} == {
        key: pytest.approx(values[0], rel=2**-8) for key, values in PER_TENSOR.items()
    }
    with pytest.raises(InputError, match="one KV-cache scale per tensor; give --granularity tensor"):
        save_checkpoint(tmp_path / "heads", original, PER_HEAD)


def test_quarks_weights_stay_quantized_as_they_were(tmp_path: Path) -> None:
    original = checkpoint(tmp_path / "model", WEIGHTS, quantization=PRODUCERS["quark"])
    save_checkpoint(tmp_path / "copy", original, PER_TENSOR)
    found = json.loads((tmp_path / "copy" / "config.json").read_text())["quantization_config"]
    assert found["export"]["kv_cache_group"] == ["*k_proj", "*v_proj"]
    for name in ("*k_proj", "*v_proj"):
        assert found["layer_quant_config"][name]["weight"] == {"dtype": "fp8_e4m3"}
        assert found["layer_quant_config"][name]["output_tensors"]["dtype"] == "fp8_e4m3"


def test_modelopts_own_file_is_written_anew_where_it_alone_declares_the_weights(tmp_path: Path) -> None:
    original = checkpoint(tmp_path / "model", WEIGHTS)
    declared = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (original / "hf_quant_config.json").write_text(json.dumps(declared))
    save_checkpoint(tmp_path / "copy", original, PER_TENSOR)
    found = json.loads((tmp_path / "copy" / "hf_quant_config.json").read_text())
    assert found["quantization"] == {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert "quantization_config" not in json.loads((tmp_path / "copy" / "config.json").read_text())
    assert json.loads((original / "hf_quant_config.json").read_text()) == declared


def test_sglangs_file_has_every_layer_for_every_rank_and_is_read_back(tmp_path: Path) -> None:
    scales = {(1, "k"): (0.5,), (1, "v"): (0.125,)}
    document = sglang_document(scales, num_layers=3, model_type="qwen3_next", num_ranks=2)
    path = tmp_path / "kv_cache_scales.json"
    path.write_text(json.dumps(document))
    found = resolve(load_artifact(path, "sglang-json"), num_layers=3, kv_heads_per_layer=2, tp=2)
    assert found.notes == ()
    assert [found.scale(n, 1, "v").value for n in range(3)] == [1.0, 0.5, 1.0]
    with pytest.raises(InputError, match="names no model_type"):
        sglang_document(scales, num_layers=3, model_type=None, num_ranks=1)
