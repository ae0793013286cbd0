"""Families of models × producers: what each layer really gets, held against vLLM's own loader.

`matrix.json` is written by tests/vllm/write_scale_matrix.py in the vLLM environment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import checkpoint
from support.scale_matrix import FAMILIES, LAYERS, PRODUCERS, Family, Producer, scales_of

from kvtrace.scales import ResolvedScales, load_artifact, resolve

if TYPE_CHECKING:
    from kvtrace.scales import ScaleArtifact

MATRIX = json.loads((Path(__file__).parent / "matrix.json").read_text())["families"]
CELLS = [(family, producer) for family in FAMILIES for producer in PRODUCERS]
RENAMED_BEFORE = pytest.mark.xfail(
    strict=True,
    reason="vLLM 0.32 renames k_proj to qkv_proj in these models before it looks for output_scale, and drops "
    "the scale; which other models do so is not known to kvtrace",
)


def of(tmp_path: Path, family: Family, producer: Producer) -> tuple[ScaleArtifact, ResolvedScales]:
    quantization = {key: value for key, value in producer.quantization.items() if value is not None}
    path = checkpoint(tmp_path, scales_of(family, producer), model=family.config, quantization=quantization)
    artifact = load_artifact(path)
    heads = 1 if family.is_latent else 2
    return artifact, resolve(artifact, num_layers=LAYERS, kv_heads_per_layer=heads)


@pytest.mark.parametrize(
    ("family", "producer"),
    [
        pytest.param(
            family,
            producer,
            id=f"{family.name}-{producer.name}",
            marks=[RENAMED_BEFORE]
            if family.name in ("nemotron-h", "whisper") and producer.name == "quark"
            else [],
        )
        for family, producer in CELLS
    ],
)
def test_every_layer_gets_what_vllms_loader_gives_it(
    tmp_path: Path, family: Family, producer: Producer
) -> None:
    expected: dict[str, Any] = MATRIX[family.name][producer.name]
    artifact, found = of(tmp_path, family, producer)
    if "refused" in expected:
        assert found.notes_of("crash")
        return
    if artifact.number_format not in (None, "fp8"):
        return  # what is not FP8 has no FP8 scale to compare
    assert not found.notes_of("crash", "other-model")
    assert sorted({layer for layer, _, _ in found.scales}) == [int(layer) for layer in expected]
    for layer, (k, v, q) in expected.items():
        assert found.scale(int(layer), 0, "k").value == k
        assert found.scale(int(layer), 0, "q").value == q
        assert v is None or found.scale(int(layer), 0, "v").value == v


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.others], ids=lambda one: one.name)
def test_scales_of_other_modules_are_never_the_language_models(tmp_path: Path, family: Family) -> None:
    for producer in PRODUCERS:
        artifact, _ = of(tmp_path / producer.name, family, producer)
        assert 96.0 not in {value for scale in artifact.scales for value in scale.values}
        assert {
            value for module in artifact.other_modules for one in module.scales for value in one.values
        } == {96.0}
