"""Families of models × producers: what each layer really gets, held against vLLM's own loader.

`matrix.json` is written by tests/vllm/write_scale_matrix.py in the vLLM environment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import checkpoint
from support.scale_matrix import CELLS, FAMILIES, LAYERS, Family, Producer, scales_of

from kvtrace.scales import ResolvedScales, load_artifact, resolve

if TYPE_CHECKING:
    from kvtrace.scales import ScaleArtifact

MATRIX = json.loads((Path(__file__).parent / "matrix.json").read_text())["families"]


def of(tmp_path: Path, family: Family, producer: Producer) -> tuple[ScaleArtifact, ResolvedScales]:
    stored = scales_of(family, producer)
    if family.is_native:
        path = checkpoint(tmp_path, stored, model={}, file="consolidated.safetensors")
        (path / "params.json").write_text(json.dumps(family.config))
    else:
        quantization = {key: value for key, value in producer.quantization.items() if value is not None}
        path = checkpoint(tmp_path, stored, model=family.config, quantization=quantization)
    artifact = load_artifact(path)
    return artifact, resolve(
        artifact,
        num_layers=LAYERS,
        kv_heads_per_layer=1 if family.is_latent else 2,
        kv_cache_dtype=producer.cache_dtype,
    )


@pytest.mark.parametrize(
    ("family", "producer"), CELLS, ids=[f"{family.name}-{producer.name}" for family, producer in CELLS]
)
def test_every_layer_gets_what_vllms_loader_gives_it(
    tmp_path: Path, family: Family, producer: Producer
) -> None:
    expected: dict[str, Any] = MATRIX[family.name][producer.name]
    artifact, found = of(tmp_path, family, producer)
    if "refused" in expected:
        unknown = [note for note in found.notes_of("dropped-name") if "vLLM 0.32 stops" in note.text]
        assert found.notes_of("crash") or unknown
        return
    assert not found.notes_of("crash", "other-model")
    if artifact.number_format == "int8":
        return  # there is no scale to compare
    is_mixed = artifact.number_format == "mixed"
    layers = [n for n in map(int, expected) if not is_mixed or artifact.format_of(n) == "fp8"]
    assert sorted({layer for layer, _, _ in found.scales}) == layers
    for layer, (k, v, q) in ((n, expected[str(n)]) for n in layers):
        assert found.scale(layer, 0, "k").value == k
        assert found.scale(layer, 0, "q").value == q
        assert v is None or found.scale(layer, 0, "v").value == v


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.others], ids=lambda one: one.name)
def test_scales_of_other_modules_are_never_the_language_models(tmp_path: Path, family: Family) -> None:
    for producer in (producer for own, producer in CELLS if own is family):
        artifact, _ = of(tmp_path / producer.name, family, producer)
        assert 96.0 not in {value for scale in artifact.scales for value in scale.values}
        if producer.name != "unknown-names":
            assert {
                value for module in artifact.other_modules for one in module.scales for value in one.values
            } == {96.0}
