"""Real incidents in a real vLLM: scales too small, or never loaded. Quality is measured, the cause named."""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_cpu import needs_fp8_cache
from support.vllm_engines import ONE_PROCESS, StoredTrace, connector, only_trace, run_offline
from support.vllm_prompts import HAYSTACK, labelled

from kvtrace.calibration.save import SCALES_FILE, save_checkpoint
from kvtrace.scales import load_artifact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.scales import ScaleArtifact

pytestmark = pytest.mark.vllm

KVTRACE = Path(__file__).parents[2] / ".venv/bin/kvtrace"
ENGINE = {"max_model_len": 1024, "max_num_seqs": 4, "seed": 0, "enforce_eager": True}
TOO_SMALL = 8


def texts() -> Iterator[tuple[str, str]]:
    """Yield (workload, text): code in pieces of some 700 tokens, and the same sentences over and over."""
    for module in (argparse, difflib):
        source = inspect.getsource(module)
        for start in range(0, 12_000, 2_400):
            yield "code", source[start : start + 2_400]
    for number in range(4):
        yield "retrieval", HAYSTACK * (20 + 2 * number) + f"The secret number is {4711 + number}."


REQUESTS = [
    labelled(text, workload, f"{workload}-{number}", max_tokens=2) | {"cache_salt": str(number)}
    for number, (workload, text) in enumerate(texts())
]
for one in REQUESTS:
    one["sampling"]["prompt_logprobs"] = 0
FEW = REQUESTS[::5]
"""Of both modules and the repetition: enough to see scales 8 times too small."""


class Served:
    """One engine's run of all requests: the prompts' NLL, and the trace."""

    def __init__(
        self,
        folder: Path,
        checkpoint: Path,
        requests: list[dict[str, Any]] = REQUESTS,
        **arguments: str,
    ) -> None:
        engine: dict[str, Any] = {
            **ENGINE,
            **arguments,
            "kv_transfer_config": connector(folder / "traces", position_stride=4),
        }
        finished = run_offline(folder, checkpoint, engine, [requests], **ONE_PROCESS)
        assert finished.returncode == 0, finished.stderr[-3000:]
        (answers,) = json.loads((folder / "out.json").read_text())["rounds"]
        self.nll = statistics.mean(answer["prompt_nll"] for answer in answers)
        self.trace = only_trace(folder / "traces").path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("incident")


@pytest.fixture(scope="module")
def good_checkpoint(folder: Path, model: Path) -> Path:
    """Calibrated on the BF16 engine's own traffic."""
    bf16 = Served(folder / "bf16", model)
    print(f"prompt NLL, bf16 cache: {bf16.nll:.3f}")
    return calibrated(bf16.trace, folder / "good", model, headroom=1)


@pytest.fixture(scope="module")
def good(folder: Path, good_checkpoint: Path) -> Served:
    return Served(folder / "good-run", good_checkpoint)


@pytest.fixture(scope="module")
def bad_checkpoint(folder: Path, model: Path, good_checkpoint: Path) -> Path:
    return too_small(good_checkpoint, folder / "bad", model)


@pytest.fixture(scope="module")
def bad(folder: Path, bad_checkpoint: Path) -> Served:
    return Served(folder / "bad-run", bad_checkpoint)


@pytest.fixture(scope="module")
def few_in_bf16(folder: Path, model: Path) -> Served:
    return Served(folder / "few-bf16", model, FEW)


@pytest.fixture(scope="module")
def too_small_checkpoint(folder: Path, model: Path, few_in_bf16: Served) -> Path:
    fitting = calibrated(few_in_bf16.trace, folder / "fitting", model, headroom=1)
    return too_small(fitting, folder / "too-small", model)


def too_small(fitting: Path, out: Path, model: Path) -> Path:
    values = values_of(load_artifact(fitting))
    save_checkpoint(out, model, {key: [one / TOO_SMALL for one in some] for key, some in values.items()})
    return out


def values_of(artifact: ScaleArtifact) -> dict[tuple[int, str], list[float]]:
    return {(scale.layer, scale.tensor): list(scale.values) for scale in artifact.scales}


def layer_dtypes(served: Served) -> set[str]:
    """Return the cache dtypes that the engine's layers had in effect."""
    return {layer["kv_cache_dtype"] for layer in StoredTrace(served.trace).layers}


def advised(*report: object) -> tuple[str, str]:
    """Return the flag, and its value, of all findings that something clips."""
    findings = json.loads(kvtrace("report", *report, "--json"))["findings"]
    actions = [one["action"] for one in findings if one["id"] in {"k-clips", "v-clips"}]
    (found,) = {found for one in actions for found in re.findall(r"--(kv-cache-dtype) (\w+)", one)}
    return found


def kvtrace(*arguments: object) -> str:
    finished = subprocess.run(
        [KVTRACE, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def calibrated(trace: Path, out: Path, model: Path, *, headroom: float) -> Path:
    recipe = ("--granularity", "tensor", "--headroom", headroom)
    kvtrace("calibrate", trace, *recipe, "--checkpoint", model, "-o", out)
    return out


def test_the_checkpoint_with_scales_8_times_too_small_served_as_advised_has_the_likelihood_of_bf16(
    folder: Path, few_in_bf16: Served, too_small_checkpoint: Path
) -> None:
    flag, dtype = advised(few_in_bf16.trace, "--scales", too_small_checkpoint)
    served = Served(folder / "advised", too_small_checkpoint, FEW, **{flag.replace("-", "_"): dtype})
    print(f"prompt NLL, bf16 cache: {few_in_bf16.nll:.4f}; scales / {TOO_SMALL}, {dtype}: {served.nll:.4f}")
    assert layer_dtypes(served) == {dtype}
    assert served.nll == pytest.approx(few_in_bf16.nll, rel=1e-4)


@needs_fp8_cache
def test_the_same_checkpoint_under_auto_does_not_and_its_report_advises_the_same(
    folder: Path, few_in_bf16: Served, too_small_checkpoint: Path
) -> None:
    """`auto` is vLLM's default, which becomes FP8 where config.json declares it."""
    served = Served(folder / "auto", too_small_checkpoint, FEW, kv_cache_dtype="auto")
    print(f"prompt NLL, bf16 cache: {few_in_bf16.nll:.4f}; scales / {TOO_SMALL}, auto: {served.nll:.4f}")
    assert layer_dtypes(served) == {"fp8"}
    assert served.nll > few_in_bf16.nll + 1
    assert advised(served.trace) == ("kv-cache-dtype", "bfloat16")


@needs_fp8_cache
@pytest.mark.vllm_full
def test_scales_8_times_too_small_ruin_the_prompts_likelihood(good: Served, bad: Served) -> None:
    print(f"prompt NLL, calibrated scales: {good.nll:.3f}; scales / {TOO_SMALL}: {bad.nll:.3f}")
    assert bad.nll > good.nll + 1


@needs_fp8_cache
@pytest.mark.vllm_full
def test_the_report_on_the_incidents_trace_names_clipping_the_worst_layers_and_the_fix(bad: Served) -> None:
    report = json.loads(kvtrace("report", bad.trace, "--json"))
    assert report["verdict"]["status"] == "fault"
    assert report["findings"][0]["id"] in {"constant-factor", "k-clips", "v-clips"}
    first = next(one for one in report["findings"] if one["id"] in {"k-clips", "v-clips"})
    assert first["candidate"] == "effective"
    assert first["heads"]
    assert "Calibrate on this traffic" in first["action"]
    assert first["command"].startswith("kvtrace calibrate")
    assert {finding["id"] for finding in report["findings"]} >= {"k-clips", "v-clips"}


@needs_fp8_cache
@pytest.mark.vllm_full
def test_scales_calibrated_on_the_incidents_trace_bring_the_likelihood_back(
    folder: Path, model: Path, good: Served, bad: Served
) -> None:
    checkpoint = calibrated(bad.trace, folder / "mended", model, headroom=2)
    mended = Served(folder / "mended-run", checkpoint)
    print(f"prompt NLL, recalibrated on the incident's trace: {mended.nll:.3f}")
    assert mended.nll == pytest.approx(good.nll, rel=0.02)


@needs_fp8_cache
@pytest.mark.vllm_full
def test_scales_that_the_engine_never_loads_are_the_first_thing_said(
    folder: Path, good_checkpoint: Path, model: Path
) -> None:
    """vLLM 0.32 refuses a Llama checkpoint with scale names it does not know, but opens only the files that
    the index names: where the names were changed there, it serves with 1.0 and says nothing."""
    lost = folder / "lost"
    save_checkpoint(lost, model, values_of(load_artifact(good_checkpoint)))
    index = lost / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"] = {
        name: file for name, file in content["weight_map"].items() if file != SCALES_FILE
    }
    index.write_text(json.dumps(content))
    served = Served(folder / "lost-run", lost)
    for scales in (lost, good_checkpoint):
        text = kvtrace("report", served.trace, "--scales", scales)
        print(text[: text.index("RANGE USED")])
        report = json.loads(kvtrace("report", served.trace, "--scales", scales, "--json"))
        assert report["verdict"]["status"] == "fault"
        assert report["findings"][0]["id"] in {"scales-not-loaded", "unmatched-names"}
        assert "FAULT · not loaded" in text
