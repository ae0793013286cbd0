"""`kvtrace capacity` as a user meets it: the table, the way back, JSON by the published schema, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.capacity_cases import SHAPE
from support.run_cli import kvtrace

from kvtrace.capacity.report import CapacityReport

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "smollm2-135m.kvtrace"
LLAMA = SHAPE | {"model_type": "llama", "num_hidden_layers": 5}
LOG = (
    "INFO Model loading took 0.25 GiB memory and 1.0 seconds\n"
    "INFO Available KV cache memory: 0.06 GiB\n"
    "INFO GPU KV cache size: {tokens:,} tokens, Maximum concurrency for 512 tokens per request: 51.00x\n"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_a_trace_has_the_blocks_that_its_engine_had() -> None:
    result = kvtrace("capacity", SAMPLE, "--budget", "2GiB", "--json")
    assert result.returncode == 0, result.stderr
    report = CapacityReport.model_validate_json(result.stdout)
    recorded = json.loads((SAMPLE / "trace.json").read_text())["engine"]["settings"]["cache_config"]
    assert report.formats[0].num_blocks == recorded["num_gpu_blocks"] == 728
    assert report.formats[0].block_size == recorded["block_size"]


def test_the_table_has_a_line_for_auto_and_for_each_dtype(model: Path) -> None:
    result = kvtrace(
        "capacity", model, "--cache-dtype", "fp8", "--cache-dtype", "nvfp4", "--budget", "64MiB",
        "--max-model-len", "512",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(("auto", "fp8", "nvfp4"))]
    # 5 layers × 2 heads × (64 + 64): 2,560 bytes, 1,280, and 9/16 of that; blocks of 16
    assert rows == [
        ["auto", "2,560", "16", "40,960", "1,638", "26,208", "51.19", "1.00", "×"],
        ["fp8", "1,280", "16", "20,480", "3,276", "52,416", "102.38", "2.00", "×"],
        ["nvfp4", "720", "16", "11,520", "5,825", "93,200", "182.03", "3.56", "×"],
    ]


def test_a_sheet_has_limit_deadline_manifest_and_command(model: Path, tmp_path: Path) -> None:
    manifest, sheet = tmp_path / "baseline.json", tmp_path / "back.md"
    manifest.write_text("{}\n")
    result = kvtrace(
        "capacity", model, "--budget", "64MiB", "--max-model-len", "512", "--limit", "80",
        "--tokens-per-request", "500", "--sheet", sheet, "--manifest", manifest, "--drain-s", "90",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "set --max-num-seqs 51 before the larger cache is restored" in result.stdout
    text = sheet.read_text()
    assert "from 80 to **51** requests" in text
    assert "**90 s**" in text
    assert "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356" in text
    assert f"vllm serve {model} --kv-cache-dtype bfloat16 --max-num-seqs 51 --max-model-len 512" in text


def test_a_trace_decides_the_way_back_by_its_own_lengths() -> None:
    result = kvtrace("capacity", SAMPLE, "--budget", "2GiB", "--limit", "400", "--json")
    assert result.returncode == 0, result.stderr
    back = CapacityReport.model_validate_json(result.stdout).rollback
    assert back is not None
    assert [one.basis for one in back.headroom] == ["worst", "planned", "simulated"]
    assert (back.basis, back.fits) == ("simulated", False)
    assert 0 < back.limit_to_set < 400


def test_an_engines_log_is_compared_with_the_plan(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    for tokens, agrees in ((25_152, True), (20_000, False)):
        log.write_text(
            "Initializing a V1 LLM engine (v0.32.0) with config: model='m', kv_cache_dtype=auto, x\n"
            + LOG.format(tokens=tokens)
        )
        result = kvtrace("capacity", model, "--from-log", log, "--json")
        assert result.returncode == 0, result.stderr
        report = CapacityReport.model_validate_json(result.stdout)
        assert report.engine is not None
        assert report.engine.agrees is agrees
        assert report.engine.weights_bytes == 1 << 28


def test_a_log_alone_shows_what_the_engine_said(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(LOG.format(tokens=25_152))
    result = kvtrace("capacity", "--from-log", tmp_path / "vllm.log")
    assert result.returncode == 0, result.stderr
    assert "weights: 256 MiB" in result.stdout
    assert "25,152 tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "expected MODEL, --from-log or --from-metrics"),
        (("absent",), "absent: cannot be read (No such file or directory)"),
        ((SAMPLE, "--budget", "lots"), "--budget 'lots': expected bytes or a size such as 40GiB"),
        ((SAMPLE, "--budget", "1GiB", "--from-log", "x"), "expected one of --budget"),
        ((SAMPLE, "--rollback", "worst"), "need --limit"),
        ((SAMPLE, "--limit", "8"), "--limit: needs the bytes of the cache"),
        ((SAMPLE, "--tp", "2"), "do not split over 2 ranks"),
        ((SAMPLE, "--draft", "absent"), "absent: cannot be read"),
        ((SAMPLE, "--mtp"), "declares no draft layers"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: tuple[object, ...], text: str) -> None:
    result = kvtrace("capacity", *arguments)
    assert result.returncode == 2
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_recipe_is_written_and_priced_the_same_when_read_back(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "hf_quant_config.json"
    by_layer = "fp8/0:auto/2-3:k=fp8,v=nvfp4"
    written = kvtrace("capacity", model, "--cache-dtype", by_layer, "--write-recipe", recipe, "--json")
    assert written.returncode == 0, written.stderr
    read = kvtrace("capacity", model, "--cache-dtype", recipe, "--json")
    assert read.returncode == 0, read.stderr
    one, other = (CapacityReport.model_validate_json(out.stdout) for out in (written, read))
    assert one.formats[1].bytes_per_token == other.formats[1].bytes_per_token == 512 + 2 * 256 + 2 * 200
    assert [warning.kind for warning in other.warnings] == ["not-served", "map-unread"]
    assert kvtrace("capacity", model, "--write-recipe", tmp_path / "none.json").returncode == 2
