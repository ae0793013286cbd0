"""The way from an incident to a mended deployment, as printed: scales 8 times too small."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.checkpoints import MODEL, checkpoint
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.calibration.save import save_checkpoint
from kvtrace.scales import load_artifact
from kvtrace.trace.fingerprint import weights_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_REQUESTS = 6
LARGEST = 7.0
COVERING = 2.0**-6
"""LARGEST / 448."""
KEYS = [(layer, tensor) for layer in range(2) for tensor in ("k", "v")]
WEIGHTS = {f"model.layers.{n}.self_attn.k_proj.weight": torch.ones(4, 4) for n in range(2)}


def traffic(path: Path, served: Path, scale: float, seed: int, **options: Any) -> Path:
    """Write a trace of an FP8 engine that served a checkpoint; every head reaches LARGEST."""
    random = np.random.default_rng(seed)
    shape = (NUM_REQUESTS * 4, 2, 8)
    tensors = {key: random.uniform(-4, 4, shape) for key in KEYS}
    for values in tensors.values():
        values[:, :, 0] = LARGEST
    return fabricate_trace(
        path,
        tensors,
        request_of_row=[row // 4 for row in range(shape[0])],
        position_of_row=[row % 4 for row in range(shape[0])],
        requests=[request(number, prompt_tokens=4) for number in range(NUM_REQUESTS)],
        scales=dict.fromkeys(KEYS, (scale,)),
        model={
            "name": str(served),
            "weights_digest": weights_digest(served),
            "hf_config": json.loads((served / "config.json").read_text()),
        },
        **{"kv_cache_dtype": "fp8", "backend": "CPU_ATTN"} | options,
    )


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The deployed checkpoint, its scales among the weights' links; commands run beside it."""
    monkeypatch.chdir(tmp_path)
    original = checkpoint(tmp_path / "model", WEIGHTS)
    save_checkpoint(tmp_path / "served", original, dict.fromkeys(KEYS, (COVERING / 8,)))
    return tmp_path / "served"


@pytest.fixture
def before(tmp_path: Path, served: Path) -> Path:
    return traffic(tmp_path / "before.kvtrace", served, COVERING / 8, seed=0)


def run_as_printed(command: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "kvtrace"
    finished = kvtrace(*arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def serve_as_printed(command: str, seed: int) -> None:
    """Write what the printed engine would capture: other requests, and the scales of its checkpoint."""
    words = shlex.split(command)
    assert words[:2] == ["vllm", "serve"]
    deployed = Path(words[2])
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    scales = {values for scale in load_artifact(deployed).scales for values in scale.values}
    (scale,) = scales
    folder = Path(config["kv_connector_extra_config"]["directory"])
    traffic(
        folder / "after.kvtrace",
        deployed,
        scale,
        seed,
        kv_cache_dtype=words[words.index("--kv-cache-dtype") + 1],
    )


def take(steps: list[Mapping[str, str]], seed: int) -> str:
    """Take every step as printed, and return what the last one said."""
    told = ""
    for step in steps:
        if step["does"] == "serve":
            serve_as_printed(step["command"], seed)
        else:
            told = run_as_printed(step["command"])
    return told


def test_the_reports_own_steps_lead_to_a_deployment_that_the_next_report_calls_sound(
    before: Path, served: Path
) -> None:
    report = json.loads(run_as_printed(f"kvtrace report {before} --scales {served} --json"))
    action = report["answer"]["action"]
    assert [step["does"] for step in action["steps"]] == ["calibrate", "serve", "report"]
    assert action["steps"][0]["command"] == action["command"]
    told = take(action["steps"], seed=1)
    assert "Clipping is gone: it mattered in 8 heads, in none after" in told
    assert {value for one in load_artifact(Path("before-mended")).scales for value in one.values} == {
        2 * COVERING
    }
    alone = json.loads(run_as_printed("kvtrace report before-mended-traces --json"))
    assert (alone["answer"]["state"], alone["answer"]["kind"]) == ("sound", "as served")


def test_mend_does_the_same_in_one_command_and_prints_the_rest(before: Path, served: Path) -> None:
    told = run_as_printed(f"kvtrace mend {before} --checkpoint {served} -o new --json")
    mended = json.loads(told)
    assert (mended["audited"]["state"], mended["audited"]["finding"]) == ("fault", "constant-scales")
    assert run_as_printed(mended["audited"]["command"]).startswith("kvtrace report")
    written = mended["written"]
    assert (written["granularity"], written["headroom"], written["num_scales"]) == ("tensor", 2.0, 4)
    assert (written["num_linked"], written["copied"]) == (1, [])
    assert "clipped 8 of 8 heads, values up to 8.0 × what its scales cover" in written["warning"]
    assert "Clipping is gone" in take(mended["next"], seed=2)


def test_the_text_of_mend_has_each_command_on_a_line_of_its_own(before: Path, served: Path) -> None:
    told = run_as_printed(f"kvtrace mend {before} --checkpoint {served} -o new")
    commands = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    assert [command.split()[:2] for command in commands] == [
        ["kvtrace", "report"],
        ["kvtrace", "calibrate"],
        ["vllm", "serve"],
        ["kvtrace", "report"],
    ]
    assert "Found: Every scale is the same constant (fault)" in told
    assert f"Written to new: scales, 1 links to files of {served}" in told


def test_calibrate_ends_with_what_to_run_next_and_warns_of_values_behind_clipped_ones(
    before: Path, served: Path
) -> None:
    given = f"kvtrace calibrate {before} --granularity tensor -o"
    told = run_as_printed(f"{given} new --checkpoint {served}")
    assert "The captured engine clipped 8 of 8 heads" in told
    lines = told.splitlines()
    assert lines[-1] == f"  kvtrace report {before} new-traces"
    serve_as_printed(lines[-3].strip(), seed=3)
    assert "Clipping is gone" in run_as_printed(lines[-1].strip())
    alone = run_as_printed(f"{given} alone")
    assert "Scales alone cannot be served. With --checkpoint" in alone
    assert "vllm serve" not in alone


def test_where_the_scales_that_ran_are_sound_nothing_is_written(tmp_path: Path, served: Path) -> None:
    trace = traffic(tmp_path / "fine.kvtrace", served, 2 * COVERING, seed=0)
    told = run_as_printed(f"kvtrace mend {trace} --checkpoint {tmp_path / 'model'} -o new")
    assert "New scales would mend nothing: those that ran are sound. Nothing was written." in told
    assert not Path("new").exists()


def test_scales_are_per_head_where_the_engine_and_the_model_take_them(tmp_path: Path, served: Path) -> None:
    on_gpu = {"backend": "FLASH_ATTN", "device": "cuda"}
    plain = checkpoint(tmp_path / "plain", WEIGHTS)
    trace = traffic(tmp_path / "gpu.kvtrace", plain, COVERING / 8, seed=0, **on_gpu)
    run_as_printed(f"kvtrace mend {trace} --checkpoint {plain} -o per-head")
    artifact = load_artifact(Path("per-head"))
    assert artifact.granularity == "attn_head"
    other = traffic(
        tmp_path / "other.kvtrace", plain, COVERING / 8, seed=0, backend="FLASHINFER", device="cuda"
    )
    run_as_printed(f"kvtrace mend {other} --checkpoint {plain} -o per-tensor")
    assert load_artifact(Path("per-tensor")).granularity == "tensor"


def test_a_trace_of_an_engine_without_fp8_is_calibrated_on_and_nothing_is_called_clipped(
    tmp_path: Path, served: Path
) -> None:
    """The second half of a remedy: captured with the cache in the model's own dtype."""
    trace = traffic(tmp_path / "bf16.kvtrace", served, 1.0, seed=0, kv_cache_dtype="auto")
    mended = json.loads(
        run_as_printed(f"kvtrace mend {trace} --checkpoint {tmp_path / 'model'} -o new --json")
    )
    assert mended["written"]["warning"] is None
    assert {v for one in load_artifact(Path("new")).scales for v in one.values} == {2 * COVERING}


def test_the_serve_line_keeps_ranks_length_and_layers_that_were_left_out(
    tmp_path: Path, served: Path
) -> None:
    settings = {"cache_config": {"kv_cache_dtype_skip_layers": ["1"]}}
    trace = traffic(
        tmp_path / "two.kvtrace",
        served,
        COVERING / 8,
        seed=0,
        ranks=[[0], [1]],
        settings=settings,
        kept_in_bf16=[1],
    )
    mended = json.loads(run_as_printed(f"kvtrace mend {trace} --checkpoint {served} -o new --json"))
    words = shlex.split(mended["next"][0]["command"])
    assert words[3:11] == [
        "--kv-cache-dtype",
        "fp8",
        "--tensor-parallel-size",
        "2",
        "--max-model-len",
        "8192",
        "--kv-cache-dtype-skip-layers",
        "1",
    ]


def test_weights_of_another_model_are_refused_before_anything_is_counted(
    before: Path, tmp_path: Path
) -> None:
    other = checkpoint(tmp_path / "other", {name: 2 * w for name, w in WEIGHTS.items()}, model=MODEL)
    finished = kvtrace("mend", before, "--checkpoint", other, "-o", "new")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "its weights have digest" in finished.stderr
    assert not Path("new").exists()
