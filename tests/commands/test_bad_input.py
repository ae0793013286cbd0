"""Input that cannot be used: one line on stderr, exit 2, nothing overwritten; the rest still reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fabricate import fabricate_trace, request
from support.run_cli import Result, kvtrace

from kvtrace.calibration.save import save_scales
from kvtrace.trace.format import COMMIT_FILE

LAYERS, HEADS = 2, 2


@pytest.fixture(scope="module")
def sound_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    return fabricate_trace(
        tmp_path_factory.mktemp("trace") / "sound.kvtrace",
        {
            (layer, tensor): rng.normal(size=(80, HEADS, 8))
            for layer in range(LAYERS)
            for tensor in ("k", "v")
        },
        request_of_row=[0] * 80,
        position_of_row=range(80),
        requests=[request(0, prompt_tokens=80)],
    )


@pytest.fixture
def trace(sound_trace: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_trace, tmp_path / "broken.kvtrace"))


def scales(path: Path, *, layers: int = LAYERS, heads: int = HEADS) -> Path:
    save_scales(path, {(layer, tensor): [0.01] * heads for layer in range(layers) for tensor in ("k", "v")})
    return path


def with_first_scale(path: Path, value: float) -> Path:
    """Overwrite the first bf16 scale of a saved artifact, as a broken exporter would."""
    file = scales(path) / "model-kv-scales.safetensors"
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    bits = int(np.float32(value).view(np.uint32)) >> 16
    content[8 + length : 10 + length] = bits.to_bytes(2, "little")
    file.write_bytes(content)
    return path


def assert_unusable(result: Result, *expected: str) -> None:
    assert result.returncode == 2, result.stdout
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    for text in expected:
        assert text in result.stderr


CHUNK = "rank-0.zarr/layers/01/v/c/1/0/0"


@pytest.mark.parametrize("command", ["report", "replay"])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "is damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:30] + b"x" + file.read_bytes()[31:]), "is damaged"),
    ],
    ids=["missing", "cut", "flipped"],
)
def test_a_damaged_chunk_is_named_and_no_run_is_left(
    trace: Path, tmp_path: Path, command: str, damage, expected: str
) -> None:
    damage(trace / CHUNK)
    output = tmp_path / "out"
    assert_unusable(kvtrace(command, trace, "-o", output), CHUNK, expected)
    assert not output.exists()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("report", "folder: holds neither trace.json nor run.json"),
        ("replay", "folder: is not a trace: expected"),
        ("inspect", "folder: is not a trace: expected"),
    ],
)
def test_what_is_no_trace_says_so(tmp_path: Path, command: str, reason: str) -> None:
    output = tmp_path / "out"
    (tmp_path / "folder").mkdir()
    assert_unusable(kvtrace(command, tmp_path / "folder", "-o", output), reason)
    assert_unusable(
        kvtrace(command, tmp_path / "nowhere", "-o", output), "nowhere: no such file or directory"
    )
    assert not output.exists()


@pytest.mark.parametrize("command", ["report", "replay", "inspect"])
def test_a_trace_from_the_future_says_which_version(trace: Path, tmp_path: Path, command: str) -> None:
    record = json.loads((trace / "trace.json").read_text())
    (trace / "trace.json").write_text(json.dumps(record | {"schema_version": "7.0"}))
    assert_unusable(kvtrace(command, trace, "-o", tmp_path / "out"), "schema version 7.0")


def test_a_trace_without_committed_rows_says_so(tmp_path: Path) -> None:
    trace = fabricate_trace(
        tmp_path / "empty.kvtrace",
        {(0, "k"): np.ones((1, 1, 4)), (0, "v"): np.ones((1, 1, 4))},
        request_of_row=[0],
        position_of_row=[0],
        requests=[request(0, prompt_tokens=1)],
        rows_of_rank=[[]],
    )
    assert_unusable(kvtrace("report", trace), "no committed row")
    shown = kvtrace("inspect", trace)
    assert (shown.returncode, shown.stderr) == (0, "")
    for line in (
        "model     fabricated",
        "engine    fabricated 0 on cpu",
        "every effective K and V scale is 1",
    ):
        assert line in shown.stdout
    assert "complete  0 of 1 sampled positions of finished requests are stored, 1 are not" in shown.stdout


def test_a_damaged_commit_record_is_named(trace: Path) -> None:
    file = trace / "rank-0.zarr" / COMMIT_FILE
    file.write_text(file.read_text().replace('"num_rows": 64', '"num_rows": 63'))
    assert_unusable(kvtrace("report", trace), COMMIT_FILE, "is damaged")


@pytest.mark.parametrize("command", ["report", "replay"])
def test_an_output_that_exists_is_not_overwritten(trace: Path, tmp_path: Path, command: str) -> None:
    output = tmp_path / "precious"
    output.write_text("precious")
    assert_unusable(kvtrace(command, trace, "-o", output), "precious", "exists")
    assert output.read_text() == "precious"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("command", ["report", "replay"])
def test_a_gpu_that_is_not_there_is_not_replaced_by_the_cpu(
    trace: Path, tmp_path: Path, command: str
) -> None:
    output = tmp_path / "out"
    assert_unusable(kvtrace(command, trace, "--device", "cuda", "-o", output), "cuda")
    assert not output.exists()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_scale_makes_its_candidate_invalid_and_the_others_are_reported(
    trace: Path, tmp_path: Path, value: float
) -> None:
    bad = with_first_scale(tmp_path / "bad", value)
    result = kvtrace("report", trace, "--scales", bad, "--scales", scales(tmp_path / "good"), "--json")
    assert result.returncode == 0, result.stderr
    found = {candidate["candidate"]: candidate for candidate in json.loads(result.stdout)["candidates"]}
    assert found["bad"]["status"] == "invalid"
    assert "layer 0" in found["bad"]["reason"]
    assert found["good"]["status"] == "valid"
    assert found["bf16"]["status"] == "valid"


@pytest.mark.parametrize(("layers", "heads", "expected"), [(3, 2, "layer"), (2, 4, "head")])
def test_scales_of_another_model_are_invalid_with_the_counts(
    trace: Path, tmp_path: Path, layers: int, heads: int, expected: str
) -> None:
    other = scales(tmp_path / "other", layers=layers, heads=heads)
    result = kvtrace("report", trace, "--scales", other, "--scales", scales(tmp_path / "good"), "--json")
    found = {candidate["candidate"]: candidate for candidate in json.loads(result.stdout)["candidates"]}
    assert found["other"]["status"] == "invalid"
    assert expected in found["other"]["reason"]


def test_exit_2_when_no_candidate_asked_for_remains(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    bad = with_first_scale(tmp_path / "bad", 0.0)
    assert_unusable(kvtrace("replay", trace, "--scales", bad, "-o", output), "bad", "layer 0")
    assert not output.exists()


def test_an_artifact_that_is_not_there_is_named(trace: Path, tmp_path: Path) -> None:
    assert_unusable(kvtrace("report", trace, "--scales", tmp_path / "nowhere"), "nowhere")


def test_an_unknown_query_lists_the_known_ones(trace: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert kvtrace("replay", trace, "-o", run).returncode == 0
    assert_unusable(kvtrace("query", run, "rank_haeds"), "rank_heads")
