"""`--cache-dtype` and `--sweep` on the command line, and what a run and a report say of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.replayed_trace import rows_of
from support.run_cli import kvtrace

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, HEADS, WIDTH, TOKENS = 6, 2, 64, 24
BY_LAYER = "fp8/0:auto/2-3:nvfp4/4:int8_per_token_head"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    values = {
        (layer, tensor): rng.normal(size=(TOKENS, HEADS, WIDTH)) for layer in range(LAYERS) for tensor in "kv"
    }
    values[3, "k"][5, 1, 7] = 3000.0  # beyond nvfp4's 2688 and K of turboquant_k8v4's 448
    return fabricate_trace(
        tmp_path_factory.mktemp("traces") / "day.kvtrace",
        values,
        request_of_row=[row // 4 for row in range(TOKENS)],
        position_of_row=[row % 4 for row in range(TOKENS)],
        requests=[request(number, prompt_tokens=4) for number in range(TOKENS // 4)],
    )


@pytest.fixture(scope="module")
def run(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    names = (
        "turboquant_k8v4", "nvfp4", "int8_per_token_head", "k=bf16,v=fp8", "k=fp8,v=nvfp4", "fp8_e5m2",
        BY_LAYER, "k=fp8,v=fp8_e5m2", "int8_per_token_head/0:auto",
    )  # fmt: skip
    options = [part for name in names for part in ("--cache-dtype", name)]
    found = kvtrace("replay", trace, *options, "--sweep", "-o", out)
    assert found.returncode == 0, found.stderr
    return out


def sums(run: Path, candidate: str, tensor: str, name: str, layers: range = range(LAYERS)) -> list[object]:
    return [
        row[name]
        for row in rows_of(run, "cells")
        if row["candidate"] == candidate and row["tensor"] == tensor and row["layer"] in layers
    ]


def test_every_format_is_a_candidate_of_its_own_kind(run: Path) -> None:
    found = {
        row["candidate"]: (row["kind"], row["engine"], row["format"]) for row in rows_of(run, "candidates")
    }
    assert found == {
        "bf16": ("bf16", None, None),
        "unit": ("unit", "vllm-cuda", "e4m3fn"),
        "nvfp4": ("format", "vllm", "nvfp4"),
        "k=bf16,v=fp8": ("format", "vllm-cuda", "k=auto,v=fp8_e4m3"),
        "k=fp8,v=nvfp4": ("format", "vllm-cuda", "k=fp8_e4m3,v=nvfp4"),
        "fp8_e5m2": ("format", "vllm-cuda", "fp8_e5m2"),
        BY_LAYER: ("format", "vllm-cuda", "fp8_e4m3/0:auto/2-3:nvfp4/4:int8_per_token_head"),
        "k=fp8,v=fp8_e5m2": ("format", "vllm-cuda", "k=fp8_e4m3,v=fp8_e5m2"),
        "int8_per_token_head/0:auto": ("online", "vllm", "int8_per_token_head/0:auto"),
        "turboquant_k8v4": ("online", "vllm", "turboquant_k8v4"),
        "int8_per_token_head": ("online", "vllm", "int8_per_token_head"),
        **dict.fromkeys(
            ("p99.9", "p99.99", "absmax", "absmax-2x", "absmax-16x"), ("swept", "vllm-cuda", "e4m3fn")
        ),
    }


def test_a_pair_is_each_format_in_its_tensor(run: Path) -> None:
    assert sum(sums(run, "k=bf16,v=fp8", "k", "sum_sq_error")) == 0
    for pair, tensor, alone in [
        ("k=bf16,v=fp8", "v", "unit"), ("k=fp8,v=nvfp4", "k", "unit"), ("k=fp8,v=nvfp4", "v", "nvfp4")
    ]:  # fmt: skip
        assert sums(run, pair, tensor, "sum_sq_error") == sums(run, alone, tensor, "sum_sq_error")
        assert sums(run, pair, tensor, "num_clipped") == sums(run, alone, tensor, "num_clipped")


def test_each_half_of_a_pair_in_fp8_is_written_in_its_own_format(run: Path) -> None:
    for tensor, alone in [("k", "unit"), ("v", "fp8_e5m2")]:
        found = sums(run, "k=fp8,v=fp8_e5m2", tensor, "sum_sq_error")
        assert found == sums(run, alone, tensor, "sum_sq_error")
    assert sums(run, "unit", "v", "sum_sq_error") != sums(run, "fp8_e5m2", "v", "sum_sq_error")


@pytest.mark.parametrize(
    ("layers", "alone"),
    [
        (range(1), "bf16"),
        (range(1, 2), "unit"),
        (range(2, 4), "nvfp4"),
        (range(4, 5), "int8_per_token_head"),
        (range(5, 6), "unit"),
    ],
)
def test_each_layer_is_that_of_its_own_format(run: Path, layers: range, alone: str) -> None:
    for tensor in "kv":
        for name in ("sum_sq_error", "num_flushed", "num_clipped"):
            found = sums(run, BY_LAYER, tensor, name, layers)
            assert found == sums(run, alone, tensor, name, layers)
            assert found


def test_formats_by_layer_say_what_serves_them(run: Path) -> None:
    notes = {row["candidate"]: row["note"] for row in rows_of(run, "candidates")}
    # 2 heads of 64: 512 bytes native, 256 in FP8 twice, 144 in NVFP4 twice, 272 in INT8
    assert notes[BY_LAYER].startswith(
        "1,584 bytes a token in the captured layers, bf16 takes 1.94 ×; layers 0 "
    )
    assert "no released vLLM serves quantized layers in several formats" in notes[BY_LAYER]
    assert (
        "vLLM serves it with --kv-cache-dtype int8_per_token_head --kv-cache-dtype-skip-layers 0"
        in notes["int8_per_token_head/0:auto"]
    )
    report = json.loads(kvtrace("report", run, "--json", "--budget", "15840").stdout)
    (one,) = [one for one in report["candidates"] if one["candidate"] == BY_LAYER]
    assert (one["bytes_per_token"], one["tokens_in_budget"]) == (1584, 10)


def test_counts_of_clipped_values_are_absent_where_a_format_has_no_range(run: Path) -> None:
    for candidate, tensor in [("int8_per_token_head", "k"), ("turboquant_k8v4", "v")]:
        for name in ("num_out_of_range", "num_clipped", "sum_sq_clip_error"):
            assert set(sums(run, candidate, tensor, name)) == {None}
        assert None not in sums(run, candidate, tensor, "num_flushed")


def test_values_beyond_a_formats_range_are_counted(run: Path) -> None:
    # 3000 is beyond 6 · 448 and not beyond 7 · 448: out of range, and not clipped.
    assert sum(sums(run, "nvfp4", "k", "num_out_of_range")) == 1
    assert sum(sums(run, "nvfp4", "k", "num_clipped")) == 0
    (limit,) = {
        row["covered_amax"] for row in rows_of(run, "scales") if row["candidate"] == "nvfp4"
    }  # every scale is 1.0
    assert limit == 2688
    # Layer 3 of 6 is among the two in the middle, which turboquant codes.
    assert sum(sums(run, "turboquant_k8v4", "k", "num_clipped")) == 1
    assert sum(sums(run, "turboquant_k8v4", "k", "sum_sq_clip_error")) == pytest.approx(
        (3008 - 448) ** 2, rel=0.02
    )  # 3000 as bfloat16


def test_layers_that_a_format_keeps_native_lose_nothing(run: Path) -> None:
    for layers, is_native in [(range(2), True), (range(2, 4), False), (range(4, 6), True)]:
        assert (sum(sums(run, "turboquant_k8v4", "v", "sum_sq_error", layers)) == 0) is is_native
    origins = {
        row["layer"]: row["origin"] for row in rows_of(run, "scales") if row["candidate"] == "turboquant_k8v4"
    }
    assert [origins[layer] for layer in range(LAYERS)] == [
        "skipped", "skipped", "turboquant_k8v4", "turboquant_k8v4", "skipped", "skipped"
    ]  # fmt: skip


def test_bytes_and_the_scales_that_it_takes_are_told(run: Path) -> None:
    notes = {row["candidate"]: row["note"] for row in rows_of(run, "candidates")}
    # 2 heads · (2 layers of 100 bytes, 4 of 256) against 6 of 256.
    assert notes["turboquant_k8v4"].startswith(
        "2,448 bytes a token in the captured layers, bf16 takes 1.25 ×; layers 0, 1, 4, 5 stay native; "
        "it takes no scale of a checkpoint"
    )
    assert "every scale 1.0" in notes["nvfp4"]
    assert "an FP8 checkpoint's is 6 × that" in notes["nvfp4"]
    assert notes["p99.9"] == "the 99.9th percentile of magnitudes, made of these traces"


def test_swept_scales_cover_what_their_rule_says(run: Path) -> None:
    scale = {(row["candidate"], row["layer"], row["tensor"]): row["scale"] for row in rows_of(run, "scales")}
    assert scale["absmax-2x", 0, "v"] == 2 * scale["absmax", 0, "v"]
    assert scale["absmax-16x", 0, "v"] == 16 * scale["absmax", 0, "v"]
    assert scale["p99.9", 3, "k"] < scale["p99.99", 3, "k"] <= scale["absmax", 3, "k"]
    assert sum(sums(run, "absmax", "k", "num_clipped")) == 0
    assert sum(sums(run, "p99.9", "k", "num_clipped")) > 0


def test_a_report_shows_what_is_absent_as_a_dash(run: Path) -> None:
    found = kvtrace("report", run, "--section", "formats")
    assert found.returncode == 0, found.stderr
    line, _ = [line for line in found.stdout.splitlines() if line.strip().startswith("int8_per_token")]
    assert line.split()[2:4] == ["–", "–"]
    report = json.loads(kvtrace("report", run, "--json").stdout)
    (candidate,) = [one for one in report["candidates"] if one["candidate"] == "int8_per_token_head"]
    assert {one["measured"]["num_clipped"] for one in candidate["tensors"]} == {None}
    assert {one["measured"]["clipped_frac"] for one in candidate["tensors"]} == {None}


def test_traces_can_be_compared_without_a_run_of_their_own(trace: Path) -> None:
    found = kvtrace("compare", trace, "--cache-dtype", "int8_per_token_head", "--json")
    assert found.returncode == 0, found.stderr
    roles = {row["candidate"]: row["role"] for row in json.loads(found.stdout)["rows"]}
    assert roles == {"bf16": "BF16 baseline", "unit": "default scales", "int8_per_token_head": "online"}


def test_a_run_takes_no_candidates_any_more(run: Path) -> None:
    found = kvtrace("compare", run, "--cache-dtype", "nvfp4")
    assert found.returncode == 2
    assert "the candidates of a run are fixed" in found.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp8_ds_mla", "it stores MLA latents, and traces hold K and V of heads"),
        ("my_plugin_q6", "unknown; vLLM may have it from a plug-in"),
        ("k=fp8", "or k=NAME,v=NAME"),
        ("k=fp8,v=fp9", "'fp9': unknown"),
        ("fp8/0-6:auto", "lists layer 6, the model has layers 0 to 5"),
        ("fp8/0,auto", "names no format; expected FORMAT/LAYERS:FORMAT"),
    ],
)
def test_a_cache_dtype_that_is_not_replayed_is_named(
    trace: Path, tmp_path: Path, name: str, message: str
) -> None:
    found = kvtrace("replay", trace, "--cache-dtype", name, "-o", tmp_path / "run")
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())


def test_formats_over_an_artifacts_scales_are_tried_beside_those_over_one(
    trace: Path, tmp_path: Path
) -> None:
    scales = tmp_path / "mine.json"
    scales.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "kv_cache": {
                    "dtype": "float8_e4m3fn",
                    "scaling_factor": {"0": {str(layer): 0.5 for layer in range(LAYERS)}},
                },
            }
        )
    )
    out = tmp_path / "run"
    found = kvtrace("replay", trace, "--scales", scales, "--cache-dtype", "nvfp4", "-o", out)
    assert found.returncode == 0, found.stderr
    rows = {row["candidate"]: row for row in rows_of(out, "candidates")}
    assert list(rows) == ["bf16", "unit", "mine.json", "nvfp4", "nvfp4:mine.json"]
    assert "it takes the artifact's k_scale and v_scale" in rows["nvfp4:mine.json"]["note"]
    assert {row["scale"] for row in rows_of(out, "scales") if row["candidate"] == "nvfp4:mine.json"} == {0.5}
    # 3000 is beyond 0.5 · 3136 now.
    assert sum(sums(out, "nvfp4:mine.json", "k", "num_clipped")) == 1


def test_a_format_does_not_run_on_a_backend_that_lacks_it(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--backend", "FLASH_ATTN", "--cache-dtype", "nvfp4")
    assert kvtrace("replay", trace, *options, "-o", out).returncode == 0
    (row,) = [row for row in rows_of(out, "candidates") if row["candidate"] == "nvfp4"]
    assert (row["status"], row["reason_id"]) == ("invalid", "impossible-setup")
    assert row["reason"] == "nvfp4 does not run on FLASH_ATTN; it does on FLASHINFER"
