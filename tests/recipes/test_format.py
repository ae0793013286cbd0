"""To add a format of scales: its file, whose example is its test, and its line in the list of formats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.recipe import TreeCopy

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = "kvtrace/scales/formats/__init__.py"
FORMAT = '''"""A made-up file: {"toy_scales": [[k, v], …]}, one pair a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.artifact import DeclaredScheme, StoredScale
from kvtrace.scales.formats.contract import Format, PerRank, Reading

if TYPE_CHECKING:
    from kvtrace.scales.source import ArtifactSource


def recognizes(source: ArtifactSource) -> bool:
    """By its one key."""
    return set(source.document or ()) == {"toy_scales"}


def read(source: ArtifactSource) -> Reading:
    """Read the pairs.

    >>> from pathlib import Path
    >>> from kvtrace.scales.source import ArtifactSource
    >>> reading = read(ArtifactSource(Path("toy.json"), Path(), document={"toy_scales": [[0.5, 0.25]]}))
    >>> [(one.layer, one.tensor, one.values) for one in reading.scales]
    [(0, 'k', (0.5,)), (0, 'v', (0.25,))]
    """
    scales = tuple(
        StoredScale(layer, tensor, (value,), (), "JSON", source.path.name, f"toy_scales.{layer}.{tensor}", 0)
        for layer, pair in enumerate((source.document or {})["toy_scales"])
        for tensor, value in zip(("k", "v"), pair, strict=True)
    )
    return Reading(scales, scheme=DeclaredScheme(has_kv_scheme=True), num_ranks=1)


FORMAT = Format(
    "toy-json",
    recognizes,
    read,
    per_rank=PerRank(read_by=("vllm",), needs_every_layer=True),
    before_rope=True,
    remark="made up for a test",
)
'''


def test_a_format_takes_two_files(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path / "tree")
    tree.add("kvtrace/scales/formats/toy_json.py", FORMAT)
    tree.edit(FORMATS, "    tensorrt_llm,\n", "    tensorrt_llm,\n    toy_json,\n")
    # Before the format that takes every JSON file.
    tree.edit(FORMATS, "    vllm_json.FORMAT,\n", "    toy_json.FORMAT,\n    vllm_json.FORMAT,\n")
    assert len(tree.touched()) <= 2
    tree.test("kvtrace/scales/formats/toy_json.py")

    (tmp_path / "toy.json").write_text(json.dumps({"toy_scales": [[0.5, 0.25], [0.125, 2.0]]}))
    done = tree.run("-m", "kvtrace", "scales", tmp_path / "toy.json", "--json")
    report = json.loads(done.stdout)
    assert (report["artifact"]["format"], report["engine"]["engine"]) == ("toy-json", "vllm")
    assert report["engine"]["notes"] == ["made up for a test"]
    used = {(row["layer"], row["tensor"]): row["engine_scale"] for row in report["scales"]}
    assert used == {(0, "k"): 0.5, (0, "v"): 0.25, (1, "k"): 0.125, (1, "v"): 2.0}
    assert all(row["engine_origin"].startswith("toy.json:toy_scales.") for row in report["scales"])
