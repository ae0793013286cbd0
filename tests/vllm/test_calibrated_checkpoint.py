"""Checkpoints that `kvtrace calibrate --checkpoint` writes, in a real vLLM: the scales in effect are those
written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.vllm_cpu import needs_fp8_cache
from support.vllm_engines import ONE_PROCESS, connector, only_trace, run_offline
from support.vllm_prompts import CHAT

from kvtrace.calibration.calibrate import Calibration, calibrate
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.save import save_checkpoint
from kvtrace.calibration.write import check_target, write_calibration
from kvtrace.report.scales.build import scales_report
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import Trace, open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from support.vllm_engines import Captured

    from kvtrace.report.scales.model import ScalesReport

pytestmark = [pytest.mark.vllm, needs_fp8_cache]

ENGINE = {"max_model_len": 256, "max_num_seqs": 1, "seed": 0, "enforce_eager": True}
LEFT_OUT = 7


def served(checkpoint: Path) -> Trace:
    """Serve one request with FP8 as config.json declares it, and return the trace."""
    folder = checkpoint.parent / f"{checkpoint.name}-run"
    engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=1)}
    finished = run_offline(folder, checkpoint, engine, [[CHAT]], **ONE_PROCESS)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return open_trace(only_trace(folder / "traces").path)


@pytest.fixture(scope="module")
def traced(captured: Captured) -> Trace:
    return open_trace(captured[0].path)


@pytest.fixture(scope="module")
def calibration(traced: Trace) -> Calibration:
    return calibrate([traced], Recipe("mse", granularity="tensor"), DatasetRules())


@pytest.fixture(scope="module")
def deployed(model: Path, calibration: Calibration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "checkpoint"
    check_target(folder, model, calibration.model, "tensor")
    write_calibration(folder, calibration, checkpoint=model)
    return folder


def audited(checkpoint: Path, trace: Trace) -> ScalesReport:
    return scales_report(load_artifact(checkpoint), trace)


def test_the_engines_effective_scales_are_the_written_ones_in_every_layer(
    deployed: Path, calibration: Calibration, model: Path
) -> None:
    trace = served(deployed)
    assert trace.cache_kind == "static_fp8"
    for layer in trace.layers.values():
        assert set(layer.k_scale) == set(calibration.scales[layer.index, "k"])
        assert set(layer.v_scale) == set(calibration.scales[layer.index, "v"])
    assert len(trace.layers) == calibration.model.num_layers
    report = audited(deployed, trace)
    assert {"scales-not-loaded", "missing-layers", "per-head-collapsed"}.isdisjoint(
        f.id for f in report.findings
    )
    assert all(row.effective_scale == row.engine_scale == row.shipped_scale for row in report.scales)
    assert not (model / "kvtrace.json").exists()


def test_one_layer_without_its_scale_is_caught_as_the_layer_in_which_the_engine_used_one(
    deployed: Path, calibration: Calibration, model: Path
) -> None:
    fewer = deployed.with_name("fewer")
    kept = {key: values for key, values in calibration.scales.items() if key[0] != LEFT_OUT}
    save_checkpoint(fewer, model, kept)
    trace = served(fewer)
    report = audited(fewer, trace)
    messages = [f.message for f in report.findings if f.id == "scales-not-loaded"]
    assert messages == [f"engine used 1.0 in layer {LEFT_OUT}, where the artifact ships none"]
    assert [f.layers for f in report.findings if f.id == "missing-layers"] == [(LEFT_OUT,)]
    different = {r.layer for r in report.scales if r.effective_scale != r.shipped_scale}
    assert different == {LEFT_OUT}
    predicted = {r.layer for r in report.scales if r.engine_scale != r.effective_scale}
    assert predicted == set()


@pytest.mark.vllm_full
def test_per_head_scales_become_their_maximum_on_a_backend_that_takes_one(
    deployed: Path, traced: Trace, model: Path
) -> None:
    made = calibrate([traced], Recipe(), DatasetRules())
    path = deployed.with_name("per-head")
    write_calibration(path, made, checkpoint=model)
    trace = served(path)
    report = audited(path, trace)
    assert all(row.engine_scale == row.effective_scale for row in report.scales)
    assert "per-head-collapsed" in {f.id for f in report.findings}
    assert any(row.effective_scale != row.shipped_scale for row in report.scales)
