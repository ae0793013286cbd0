"""Which scales a replay takes for a trace: limits of a format, skipped layers, artifacts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.replayed_trace import GIVEN, HEADS, LAYERS, make_tensors, make_trace, rows_of

from kvtrace.calibration.save import save_scales
from kvtrace.candidates import (
    ArtifactScales,
    Bf16,
    EffectiveScales,
    GivenScales,
    ServingSetup,
    standard_candidates,
)
from kvtrace.candidates.captured import captured_setup
from kvtrace.errors import NoValidCandidateError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.report.build import build_report
from kvtrace.report.statements import candidate_statement
from kvtrace.runs.open import open_run
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from kvtrace.trace.reader import Trace

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
ARTIFACT_LAYERS, ARTIFACT_HEADS = 3, 2  # of the made-up model that the examples are for


@dataclass(frozen=True)
class Bound:
    """What a run says of its candidates."""

    status: dict[str, tuple[str, str | None]]
    """candidate → status and reason."""
    scales: dict[str, dict[tuple[int, int, str], float | None]]
    """candidate → (layer, kv_head, tensor) → scale."""


def bound_in(run: Path) -> Bound:
    status = {row["candidate"]: (row["status"], row["reason"]) for row in rows_of(run, "candidates")}
    scales: dict[str, dict[tuple[int, int, str], float | None]] = {name: {} for name in status}
    for row in rows_of(run, "scales"):
        scales[row["candidate"]][row["layer"], row["kv_head"], row["tensor"]] = row["scale"]
    return Bound(status, scales)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return make_trace(tmp_path / "t.kvtrace", make_tensors())


@pytest.fixture
def of_artifacts(tmp_path: Path) -> Trace:
    """A trace of the model that the example artifacts are for."""
    tensors = {
        (layer, tensor): np.ones((4, ARTIFACT_HEADS, 8), np.float32)
        for layer in range(ARTIFACT_LAYERS)
        for tensor in "kv"
    }
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        tensors,
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    return open_trace(path)


def replayed(trace: Trace, out: Path, artifact: str, setups: dict[str, ServingSetup]) -> Bound:
    """Replay one artifact under several setups, by name."""
    loaded = load_artifact(ARTIFACTS / artifact)
    candidates = [ArtifactScales(name, loaded, setup) for name, setup in setups.items()]
    return bound_in(replay(ReplayRequest([trace], [Bf16(), *candidates]), out))


def test_a_scale_may_be_as_large_as_float32_holds_it_times_the_formats_maximum(
    trace: Trace, tmp_path: Path
) -> None:
    largest = float(np.finfo(np.float32).max) / 57344  # e5m2's maximum; e4m3fn's is 448

    def given(name: str, scale: float, fp8_format: str) -> Any:
        return GivenScales(name, GIVEN | {(0, 0, "k"): scale}, ServingSetup("vllm-cuda", fp8_format))

    candidates = [
        given("below", 0.99 * largest, "e5m2"),
        given("above", 1.01 * largest, "e5m2"),
        given("above, in e4m3fn", 1.01 * largest, "e4m3fn"),
    ]
    found = bound_in(replay(ReplayRequest([trace], candidates), tmp_path / "run")).status
    assert {name: status for name, (status, _) in found.items()} == {
        "below": "valid",
        "above": "invalid",
        "above, in e4m3fn": "valid",
    }
    assert "57344 × scale is a float32" in str(found["above"][1])


def test_an_unusable_scale_of_a_skipped_layer_does_no_harm(trace: Trace, tmp_path: Path) -> None:
    one = GivenScales("one", GIVEN | {(1, 2, "v"): 0.0}, ServingSetup(skip_layers=(1,)))
    found = bound_in(replay(ReplayRequest([trace], [one]), tmp_path / "run"))
    assert found.status == {"one": ("valid", None)}
    assert found.scales["one"] == {
        key: None if key[0] == 1 else np.float32(value) for key, value in GIVEN.items()
    }


def with_layer_1_in_bf16(path: Path) -> Trace:
    """Layer 0 ran in FP8 at 0.5."""
    scales = {(layer, tensor): (0.5,) for layer in range(LAYERS) for tensor in "kv"}
    trace = make_trace(path, make_tensors(), kv_cache_dtype="fp8_e4m3", scales=scales)
    return replace(trace, layers={**trace.layers, 1: replace(trace.layers[1], kv_cache_dtype="auto")})


def test_a_layer_that_the_engine_kept_in_bf16_has_no_effective_scale(tmp_path: Path) -> None:
    trace = with_layer_1_in_bf16(tmp_path / "t.kvtrace")
    run = replay(ReplayRequest([trace], standard_candidates([trace], [])), tmp_path / "run")
    rows = [row for row in rows_of(run, "scales") if row["candidate"] == "effective"]
    assert {(row["layer"], row["scale"], row["origin"]) for row in rows} == {
        (0, 0.5, "effective"),
        (1, None, "skipped"),
    }
    assert len(rows) == LAYERS * HEADS * 2


@pytest.mark.parametrize(("skipped", "said"), [((1,), "It is what ran"), ((), "It is not what ran")])
def test_scales_are_what_ran_if_they_leave_out_the_layers_that_the_engine_did(
    tmp_path: Path, skipped: tuple[int, ...], said: str
) -> None:
    trace = with_layer_1_in_bf16(tmp_path / "t.kvtrace")
    save_scales(tmp_path / "same", {(n, t): (0.5,) for n in range(LAYERS) for t in "kv"})
    setup = replace(captured_setup(trace), skip_layers=skipped)
    candidates = standard_candidates([trace], [load_artifact(tmp_path / "same")], setup)
    report = build_report(open_run(replay(ReplayRequest([trace], candidates), tmp_path / "run")))
    same = next(one for one in report.candidates if one.candidate == "same")
    assert f"{said}: " in candidate_statement(report, same)
    assert same.hypothetical == (said != "It is what ran")


def test_vllm_on_rocm_doubles_the_scales_of_a_checkpoint_for_fnuz(
    of_artifacts: Trace, tmp_path: Path
) -> None:
    # e4m3fnuz has half of e4m3fn's value for the same bits, so vLLM doubles what it loads.
    setups = {fmt: ServingSetup("vllm-rocm", fmt) for fmt in ("e4m3fn", "e4m3fnuz")}
    found = replayed(of_artifacts, tmp_path / "run", "autofp8_k_v_scale", setups).scales
    assert len(found["e4m3fn"]) == ARTIFACT_LAYERS * ARTIFACT_HEADS * 2
    assert found["e4m3fnuz"] == {key: 2 * (value or 0) for key, value in found["e4m3fn"].items()}


def test_an_artifact_with_a_kv_cache_scheme_cannot_be_replayed_in_e5m2(
    of_artifacts: Trace, tmp_path: Path
) -> None:
    with pytest.raises(NoValidCandidateError, match="fp8_e5m2 is refused"):
        replayed(of_artifacts, tmp_path / "run", "ct_per_head", {"e5m2": ServingSetup("vllm-cuda", "e5m2")})


def test_scales_per_head_are_split_over_the_ranks_of_the_setup(of_artifacts: Trace, tmp_path: Path) -> None:
    setups = {f"tp {tp}": ServingSetup(tp=tp) for tp in (2, 3)}
    found = replayed(of_artifacts, tmp_path / "run", "ct_per_head", setups).status
    assert found["tp 2"] == ("valid", None)
    assert found["tp 3"][0] == "invalid"
    assert "cannot be split over 3" in str(found["tp 3"][1])


def test_a_run_says_by_an_id_why_a_candidate_is_invalid(of_artifacts: Trace, tmp_path: Path) -> None:
    per_head, other = (load_artifact(ARTIFACTS / name) for name in ("ct_per_head", "quark"))
    every = {
        (layer, head, tensor): 0.5
        for layer in range(ARTIFACT_LAYERS)
        for head in range(ARTIFACT_HEADS)
        for tensor in "kv"
    }
    save_scales(tmp_path / "shallow", {(0, tensor): (0.5,) for tensor in "kv"})
    candidates = [
        Bf16(),
        ArtifactScales("valid", per_head),
        ArtifactScales("per-head-refused", per_head, ServingSetup(backend="FLASHINFER")),
        ArtifactScales("unsplittable-heads", per_head, ServingSetup(tp=3)),
        ArtifactScales("engine-crash", per_head, ServingSetup("vllm-cuda", "e5m2")),
        ArtifactScales("impossible-setup", other, ServingSetup(backend="CPU_ATTN")),
        ArtifactScales("wrong-model", load_artifact(tmp_path / "shallow")),
        GivenScales("unusable-value", every | {(0, 0, "k"): 0.0}),
        GivenScales("missing-scale", {key: one for key, one in every.items() if key != (1, 1, "v")}),
        EffectiveScales(),
    ]
    rows = rows_of(replay(ReplayRequest((of_artifacts,), tuple(candidates)), tmp_path / "run"), "candidates")
    why = {one.name: one.name for one in candidates[2:-1]} | {
        "effective": "no-fp8",
        "bf16": None,
        "valid": None,
    }
    assert {row["candidate"]: row["reason_id"] for row in rows} == why
    assert all((row["reason"] is None) is (row["reason_id"] is None) for row in rows)


def test_the_heads_of_captured_layers_correct_the_models_number(of_artifacts: Trace, tmp_path: Path) -> None:
    record = of_artifacts.record
    model = record.model.model_copy(update={"num_kv_heads": 1})
    trace = replace(of_artifacts, record=record.model_copy(update={"model": model}))
    found = replayed(trace, tmp_path / "run", "ct_per_head", {"per head": ServingSetup()})
    assert found.status["per head"] == ("valid", None)
    assert found.scales["per head"].keys() == {
        (layer, head, tensor)
        for layer in range(ARTIFACT_LAYERS)
        for head in range(ARTIFACT_HEADS)
        for tensor in "kv"
    }
