"""Which KV-cache scales reach the layers of a real engine, whatever its cache's dtype is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_loaded import loaded, started

from kvtrace.scales import load_artifact, resolve

if TYPE_CHECKING:
    from pathlib import Path

MLA_NAMES = ("k_proj.k_scale", "k_scale", "mla_attn.mla_attn.k_scale", "kv_scale")
ATTENDING = {"llama": (0, 1, 2), "gemma3": (0, 1, 2)}


def quantization(producer: str, linears: list[str]) -> dict[str, Any] | None:
    """Return what a producer declares of a model whose weights all stay as they are."""
    return {
        "none": None,
        "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": linears},
        "quark": {
            "quant_method": "quark",
            "export": {"kv_cache_group": [], "pack_method": "reorder"},
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "global_quant_config": {"weight": None, "input_tensors": None, "output_tensors": None},
            "exclude": linears,
        },
        "fp8": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "modules_to_not_convert": linears,
        },
    }[producer]


@pytest.mark.vllm
def test_no_name_of_a_scale_reaches_an_mla_layer_and_the_prediction_says_so(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from support.vllm_checkpoints import write_tiny_mla_model

    path = tmp_path / "mla"
    write_tiny_mla_model(path)
    config = json.loads((path / "config.json").read_text())
    config |= {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 4,
    }
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
        "ignore": ["model*", "lm_head"],
    }
    (path / "config.json").write_text(json.dumps(config))
    scales = {f"model.layers.{n}.self_attn.{name}": torch.tensor(0.25) for n, name in enumerate(MLA_NAMES)}
    save_file(scales, path / "model.safetensors")
    assert loaded(path) == {n: [-1.0, -1.0] for n in range(4)}  # −1: none was loaded
    resolved = resolve(load_artifact(path), num_layers=4, kv_heads_per_layer=1)
    assert {scale.value for scale in resolved.scales.values()} == {1.0}
    assert [note.layers for note in resolved.notes_of("silent-default")] == [(0, 1, 2, 3)]


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("kind", "producer"),
    [("llama", "modelopt"), ("llama", "quark"), ("llama", "fp8"), ("gemma3", "none")],
)
def test_scales_written_beside_a_producers_weights_are_those_that_vllm_loads(
    tmp_path: Path, kind: str, producer: str
) -> None:
    from safetensors import safe_open
    from support.vllm_checkpoints import write_tiny_model

    from kvtrace.calibration.save import save_checkpoint

    model, copy = tmp_path / "model", tmp_path / "copy"
    write_tiny_model(model, kind)
    with safe_open(model / "model.safetensors", "pt") as file:
        linears = [name.removesuffix(".weight") for name in file.keys() if "_proj" in name]  # noqa: SIM118
    config = json.loads((model / "config.json").read_text())
    if (declared := quantization(producer, [*linears, "lm_head"])) is not None:
        (model / "config.json").write_text(json.dumps(config | {"quantization_config": declared}))
    scales = {(n, t): (2.0 ** -(n + 1) * at,) for n in ATTENDING[kind] for t, at in (("k", 1), ("v", 3))}
    save_checkpoint(copy, model, scales)
    found = loaded(copy)
    assert found == {n: [scales[n, "k"][0], scales[n, "v"][0]] for n in ATTENDING[kind]}
    artifact = load_artifact(copy)
    resolved = resolve(artifact, num_layers=config["num_hidden_layers"], kv_heads_per_layer=2)
    assert {n: [resolved.scale(n, 0, "k").value, resolved.scale(n, 0, "v").value] for n in found} == found
    assert {layer for layer, _, _ in resolved.scales} == set(found)


@pytest.mark.vllm
def test_a_model_whose_attention_gets_no_method_stops_at_a_scale_and_the_prediction_says_so(
    tmp_path: Path,
) -> None:
    from support.vllm_checkpoints import write_tiny_model

    from kvtrace.calibration.save import save_checkpoint

    write_tiny_model(tmp_path / "model", "lfm2")
    save_checkpoint(tmp_path / "copy", tmp_path / "model", {(n, t): (0.5,) for n in (1, 3) for t in "kv"})
    done = started(tmp_path / "copy")
    assert done.returncode != 0
    assert "self_attn.attn.k_scale" in done.stdout + done.stderr
    resolved = resolve(load_artifact(tmp_path / "copy"), num_layers=4, kv_heads_per_layer=1)
    assert "stops loading" in str(resolved.invalid_reason)
