"""Every kind of candidate, each by its class, and what it takes to add one."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import FrozenInstanceError, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.replayed_trace import rows_of

import kvtrace.candidates
from kvtrace.candidates import (
    KINDS,
    ArtifactScales,
    Bf16,
    Candidate,
    EffectiveScales,
    GivenScales,
    OnlineScales,
    ServingSetup,
    UnitScales,
    standard_candidates,
)
from kvtrace.candidates.applied import scale_keys, static_scales
from kvtrace.candidates.setup import DEFAULT_SETUP
from kvtrace.errors import InputError, InvalidCandidateError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.trace.reader import Trace

ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def make_trace(path: Path, *, fp8: bool = False) -> Trace:
    """One layer of two heads; head 0 holds 1.0, head 1 holds 2.0; an FP8 cache had 0.25 for K, 0.5 for V."""
    values = np.ones((4, 2, 8)) * np.array([1.0, 2.0])[None, :, None]
    return open_trace(
        fabricate_trace(
            path,
            {(0, tensor): values for tensor in "kv"},
            request_of_row=[0] * 4,
            position_of_row=range(4),
            requests=[request(0, prompt_tokens=4)],
            **(
                {"kv_cache_dtype": "fp8_e4m3", "scales": {(0, "k"): (0.25,), (0, "v"): (0.5,)}} if fp8 else {}
            ),
        )
    )


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return make_trace(tmp_path / "day.kvtrace")


@dataclass(frozen=True, slots=True)
class AbsmaxScales(Candidate):
    """A kind that kvtrace does not have: scales that just cover the trace's largest value, 2.0."""

    name: str = field(default="absmax", init=False)
    setup: ServingSetup = DEFAULT_SETUP

    kind: ClassVar[str] = "absmax"

    def scales_for(self, trace: Trace) -> AppliedScales:
        values = dict.fromkeys(scale_keys(trace), 2 / 448)
        return static_scales(self, trace, values, dict.fromkeys(values, "absmax"))

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        yield cls(asked.setup)


def test_a_new_kind_is_one_class_and_one_entry(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvtrace.candidates, "KINDS", (*KINDS, AbsmaxScales))
    run = replay(ReplayRequest([trace], standard_candidates([trace])), tmp_path / "run")
    found = {row["candidate"]: row for row in rows_of(run, "candidates")}
    assert list(found) == ["bf16", "unit", "absmax"]
    assert (found["absmax"]["kind"], found["absmax"]["status"]) == ("absmax", "valid")
    assert found["absmax"]["granularity"] == "tensor"
    scales = {row["scale"] for row in rows_of(run, "scales") if row["candidate"] == "absmax"}
    assert scales == {np.float32(2 / 448)}
    errors = {row["candidate"]: row["num_clipped"] for row in rows_of(run, "cells")}
    assert errors["absmax"] == 0


def test_every_class_of_the_package_is_listed_once() -> None:
    for module in pkgutil.iter_modules(kvtrace.candidates.__path__):
        importlib.import_module(f"kvtrace.candidates.{module.name}")
    # By name: a dataclass with slots leaves the class that it was made of behind.
    own = {one.__name__ for one in Candidate.__subclasses__() if one.__module__.startswith("kvtrace.")}
    assert sorted(kind.__name__ for kind in KINDS) == sorted(own)


@pytest.mark.parametrize(
    ("candidate", "engine", "fp8_format"),
    [
        (Bf16(), None, None),
        (UnitScales(), "vllm-cuda", "e4m3fn"),
        (EffectiveScales(ServingSetup("vllm-cpu")), "vllm-cpu", "e4m3fn"),
        (GivenScales("given", {}, ServingSetup("vllm-cuda", "e5m2")), "vllm-cuda", "e5m2"),
        (OnlineScales("int8-per-token-head"), "vllm", "int8_per_token_head"),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_engine_and_format_are_those_of_the_setup_or_the_cache_format(
    candidate: Candidate, engine: str | None, fp8_format: str | None
) -> None:
    assert (candidate.engine, candidate.format) == (engine, fp8_format)
    assert candidate.artifact is None


def test_a_candidate_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        UnitScales().setup = ServingSetup("sglang")  # type: ignore[misc]


def test_bf16_is_what_ran_where_no_cache_was_fp8(trace: Trace, tmp_path: Path) -> None:
    applied = Bf16().scales_for(trace)
    assert set(applied.values.values()) == {None}
    assert set(applied.origins.values()) == {"unquantized"}
    assert applied.granularity is None
    assert not applied.hypothetical
    assert Bf16().scales_for(make_trace(tmp_path / "fp8.kvtrace", fp8=True)).hypothetical


def test_unit_is_one_for_every_head_but_those_of_skipped_layers(trace: Trace) -> None:
    keys = {(0, head, tensor) for head in range(2) for tensor in "kv"}
    assert UnitScales().scales_for(trace).values == dict.fromkeys(keys, 1.0)
    skipping = UnitScales(ServingSetup(skip_layers=(0,))).scales_for(trace)
    assert skipping.values == dict.fromkeys(keys)
    assert set(skipping.origins.values()) == {"skipped"}


def test_effective_is_what_each_trace_had_and_nothing_where_no_cache_was_fp8(
    trace: Trace, tmp_path: Path
) -> None:
    fp8 = make_trace(tmp_path / "fp8.kvtrace", fp8=True)
    candidate = EffectiveScales.of(fp8)
    applied = candidate.scales_for(fp8)
    assert applied is not None
    assert applied.values == {(0, h, t): 0.25 if t == "k" else 0.5 for h in range(2) for t in "kv"}
    assert candidate.scales_for(trace) is None
    assert [one.kind for one in standard_candidates([trace])] == ["bf16", "unit"]
    assert [one.kind for one in standard_candidates([trace, fp8])] == ["bf16", "effective", "unit"]


def test_a_number_that_is_missing_is_named(trace: Trace) -> None:
    given = {(0, head, tensor): 0.5 for head in range(2) for tensor in "kv"}
    del given[0, 1, "v"]
    with pytest.raises(InvalidCandidateError, match="no v scale for layer 0, KV head 1"):
        GivenScales("given", given).scales_for(trace)


def test_an_artifact_of_another_model_is_invalid_with_the_reason(trace: Trace) -> None:
    artifact = load_artifact(ARTIFACTS / "ct_per_head")  # of a model of three layers
    with pytest.raises(InvalidCandidateError, match="3 layers"):
        ArtifactScales("other", artifact).scales_for(trace)


@pytest.mark.parametrize(
    "make", [UnitScales, lambda setup: GivenScales("given", {}, setup)], ids=["unit", "given"]
)
def test_a_setup_that_cannot_be_is_the_reason_whatever_the_scales(trace: Trace, make: type) -> None:
    with pytest.raises(InvalidCandidateError, match="FLASH_ATTN does not run on engine vllm-cpu"):
        make(ServingSetup("vllm-cpu", backend="FLASH_ATTN")).scales_for(trace)


def test_there_must_be_an_artifact_to_compare_with_another_checkpoint(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to compare with it; give a checkpoint with --scales"):
        standard_candidates([trace], against=tmp_path)


def test_a_candidate_with_a_fixed_name_cannot_be_renamed() -> None:
    with pytest.raises(ValueError, match="name"):
        replace(UnitScales(), name="other")
