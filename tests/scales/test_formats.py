"""What every format's record promises, whatever the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.checkpoints import checkpoint

from kvtrace.report.scales.build import scales_report
from kvtrace.scales import load_artifact, resolve
from kvtrace.scales.formats import FORMATS
from kvtrace.scales.loaders import base_method, compressed_tensors_method
from kvtrace.scales.loaders.loader import LOADERS
from kvtrace.scales.source import ArtifactSource

if TYPE_CHECKING:
    from kvtrace.scales.formats.contract import Format


def test_no_two_formats_have_one_name_and_the_last_takes_whatever_is_left() -> None:
    assert len({form.name for form in FORMATS}) == len(FORMATS)
    assert FORMATS[-1].recognizes(ArtifactSource(Path(), Path()))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_format_is_loaded_by_a_rule_that_there_is(form: Format) -> None:
    """Else a file without a config.json would be 1.0 everywhere."""
    method = form.quant_method or ""
    by_method = [one for one in (base_method, compressed_tensors_method) if one.serves(method)]
    assert len(by_method) == (0 if form.per_rank else 1)
    assert form.native_loader in (form.per_rank.read_by if form.per_rank else LOADERS)
    assert form.remark is not None or form.remark_for is None


@pytest.mark.parametrize("method", ["awq", "fp8", "compressed-tensors"])
def test_scales_by_names_that_the_loader_does_not_map_are_an_error_and_a_note(
    tmp_path: Path, method: str
) -> None:
    names = [f"model.layers.{layer}.self_attn.{t}_scale_0" for layer in range(2) for t in "kv"]
    path = checkpoint(tmp_path / "c", dict.fromkeys(names, 0.5), quantization={"quant_method": method})
    artifact = load_artifact(path)
    assert {one.name for one in artifact.unmatched} == set(names)
    notes = resolve(artifact, num_layers=2, kv_heads_per_layer=2).notes_of("dropped-name")
    assert [note.text.split(":")[0] for note in notes] == [
        "4 names match no rule and are loaded by nothing (vLLM 0.32 stops at such a name)"
    ]
    found = {one.id: one for one in scales_report(artifact).findings}["unmatched-names"]
    assert (found.severity, found.layers) == ("error", (0, 1))


def test_names_of_a_format_that_only_some_layers_keep_are_an_error_there(tmp_path: Path) -> None:
    # Layer 0 by names that vLLM loads, layer 1 by those of the first generation, which it no longer maps.
    names = [f"model.layers.0.self_attn.{t}_scale" for t in "kv"]
    names += [f"model.layers.1.self_attn.{t}_proj.output_scale" for t in "kv"]
    quantization = {"quant_method": "compressed-tensors"}
    path = checkpoint(tmp_path / "c", dict.fromkeys(names, 0.5), quantization=quantization)
    found = {one.id: one for one in scales_report(load_artifact(path)).findings}["unmatched-names"]
    assert (found.severity, found.layers) == ("error", (1,))
    assert found.evidence["names"] == names[2:]
