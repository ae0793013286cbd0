"""`kvtrace scales` as a user meets it: exit codes, the table, JSON by the published schema, hostile names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import checkpoint, compressed, scheme
from support.run_cli import kvtrace

from kvtrace.report.scales.model import ScalesReport

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "smollm2-135m.kvtrace"
HEALTHY = ROOT / "samples" / "scales" / "all-per-head"
HALVED = ROOT / "samples" / "scales" / "halved"
ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def test_exit_code_is_one_with_an_error_finding_and_zero_without() -> None:
    healthy, halved = (
        kvtrace("scales", HEALTHY, "--trace", SAMPLE),
        kvtrace("scales", HALVED, "--trace", SAMPLE),
    )
    assert healthy.returncode == 0, healthy.stdout
    assert "ERROR" not in healthy.stdout
    assert halved.returncode == 1
    assert "ERROR   clipping" in halved.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("absent",), "absent: no such file or directory"),
        ((ARTIFACTS / "ct_per_head", "--artifact-format", "gguf"), "no artifact format is called 'gguf'"),
        ((ARTIFACTS / "ct_per_head", "--trace", "absent"), "no such file or directory"),
        ((ARTIFACTS / "ct_per_head", "--engine", "llama.cpp"), "no rules are known for engine 'llama.cpp'"),
        ((ARTIFACTS / "ct_per_head", "--tp", "3"), "2 KV heads cannot be split over 3"),
        ((ARTIFACTS / "ct_per_head", "--against", ARTIFACTS / "quark"), "holds no weights to compare"),
    ],
)  # fmt: skip
def test_exit_code_is_two_with_one_line_where_nothing_can_be_read(
    arguments: tuple[object, ...], text: str
) -> None:
    result = kvtrace("scales", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert text in result.stderr


def test_the_text_fits_80_columns_and_shows_every_layer() -> None:
    lines = kvtrace("scales", HALVED, "--trace", SAMPLE).stdout.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("layer")) :]
    assert max(map(len, table)) <= 80
    assert sum(line.split()[1:2] in (["K"], ["V"]) for line in table) == 60
    findings = [line for line in lines if line.startswith("        ")]
    assert findings
    assert max(map(len, findings)) <= 80


def test_the_json_is_by_its_schema_and_says_what_the_text_says() -> None:
    result = kvtrace("scales", HALVED, "--trace", SAMPLE, "--format", "json")
    assert kvtrace("scales", HALVED, "--trace", SAMPLE, "--json").stdout == result.stdout
    content = json.loads(result.stdout)
    report = ScalesReport.model_validate(content)
    assert content["schema_version"] == "1.2"
    assert len(report.scales) == 180
    assert {"id", "severity", "message", "action", "evidence", "layers"} == set(content["findings"][0])
    assert content["findings"][0]["severity"] == "error"
    row = content["scales"][0]
    assert row["covered_amax"] == 448 * row["engine_scale"]
    assert row["effective_scale"] is None


def test_the_output_goes_to_a_file_and_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    assert kvtrace("scales", ARTIFACTS / "quark", "--json", "-o", file).returncode == 0
    before = file.read_bytes()
    assert json.loads(before)["artifact"]["format"] == "quark"
    assert kvtrace("scales", ARTIFACTS / "modelopt_fp8", "--json", "-o", file).returncode == 2
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "name", [p.name for p in sorted(ARTIFACTS.iterdir()) if p.is_dir() and p.name != "real"]
)
def test_every_example_artifact_is_audited_without_an_error(name: str) -> None:
    result = kvtrace("scales", ARTIFACTS / name)
    assert result.returncode == 0, result.stdout
    assert "ERROR" not in result.stdout


def test_a_published_qwen_artifact_with_merged_scales_is_read() -> None:
    result = kvtrace("scales", ARTIFACTS / "real" / "qwen2-1.5b-kv_cache_scales.json", "--json")
    content = json.loads(result.stdout)
    assert content["artifact"]["num_layers_with_scales"] == 28
    assert "merged-kv" in {f["id"] for f in content["findings"]}
    assert content["scales"][0]["shipped_scale"] == 0.9765625596046448


def test_the_loading_engine_can_be_chosen() -> None:
    collapsed = json.loads(
        kvtrace("scales", ARTIFACTS / "ct_per_head", "--backend", "FLASHINFER", "--json").stdout
    )
    assert collapsed["engine"]["granularity"] == "tensor"
    assert {r["engine_scale"] for r in collapsed["scales"] if (r["layer"], r["tensor"]) == (0, "k")} == {
        0.036865234375
    }
    replicated = json.loads(kvtrace("scales", ARTIFACTS / "ct_per_head", "--tp", "4", "--json").stdout)
    assert replicated["engine"]["tp"] == 4
    assert replicated["engine"]["granularity"] == "attn_head"


def test_nan_scales_stay_valid_json(tmp_path: Path) -> None:
    path = compressed(tmp_path, {"0.k": float("nan"), "0.v": 0.5, "1.k": 0.25, "1.v": float("inf")})
    result = kvtrace("scales", path, "--json")
    assert result.returncode == 1
    content = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["scales"][0]["shipped_scale"] == "NaN"


def test_hostile_names_are_shown_as_plain_text(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.\x1b[31m<script>alert(1)</script>\u202e.key_scale" + "x" * 10_000
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme()}
    path = checkpoint(tmp_path / "\x1b[31mred", {name: 0.5, "a\nb.0.k_scale": 0.5}, quantization=quantization)
    for arguments in (("scales", path), ("scales", path, "--json")):
        result = kvtrace(*arguments)
        assert result.returncode == 1
        assert "\x1b" not in result.stdout
        assert "\u202e" not in result.stdout or arguments[-1] == "--json"


def test_a_trace_where_scales_belong_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    result = kvtrace("scales", tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{tmp_path}: is a trace, expected scales" in " ".join(result.stderr.split())
