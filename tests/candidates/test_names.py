"""What candidates are called, whether they are what ran, and what is said where none can be replayed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request

from kvtrace.candidates import (
    ArtifactScales,
    EffectiveScales,
    GivenScales,
    ServingSetup,
    UnitScales,
    standard_candidates,
)
from kvtrace.candidates.bind import bind_candidates
from kvtrace.errors import InputError, NoValidCandidateError
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from kvtrace.trace.reader import Trace

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
POLICY = "fp8-per-token-head"
HALVES = {(0, head, tensor): 0.5 for head in range(2) for tensor in "kv"}


def make_trace(folder: Path, *, device: str = "cuda", **options: Any) -> Trace:
    """A trace of vLLM: one layer with two heads, every scale 0.5."""
    path = fabricate_trace(
        folder / "day.kvtrace",
        {(0, tensor): np.ones((4, 2, 8)) for tensor in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
        scales={(0, "k"): (0.5,), (0, "v"): (0.5,)},
        **options,
    )
    trace = open_trace(path)
    engine = trace.record.engine.model_copy(update={"name": "vllm", "device": device})
    return replace(trace, record=trace.record.model_copy(update={"engine": engine}))


def test_a_cache_format_keeps_its_name_and_an_artifact_called_like_it_gets_another(tmp_path: Path) -> None:
    trace = make_trace(tmp_path)
    artifact = load_artifact(shutil.copytree(ARTIFACTS / "ct_per_head", tmp_path / POLICY))
    named = standard_candidates([trace], [artifact], None, [POLICY, "int8-per-token-head", POLICY])
    assert [(one.name, one.kind) for one in named] == [
        ("bf16", "bf16"),
        ("unit", "unit"),
        (f"{POLICY}#2", "artifact"),
        (POLICY, "online"),
        ("int8-per-token-head", "online"),
    ]
    with pytest.raises(InputError, match="'fp4': unknown"):
        standard_candidates([trace], [], None, ["fp4"])


@pytest.mark.parametrize(
    ("device", "backend", "cache", "setup", "ran"),
    [
        ("cuda", "FLASH_ATTN", "fp8_e4m3", ServingSetup("vllm-cuda"), True),
        ("cuda:1", "FLASH_ATTN", "fp8", ServingSetup("vllm-cuda"), True),
        ("cuda", "FLASH_ATTN", "fp8_e4m3", ServingSetup("vllm-rocm"), False),
        ("cuda", "FLASH_ATTN", "fp8_e4m3", ServingSetup("vllm-triton"), False),
        ("cuda", "FLASH_ATTN", "fp8_e4m3", ServingSetup("vllm-cuda", "e5m2"), False),
        ("cuda", "FLASH_ATTN", "fp8_e5m2", ServingSetup("vllm-cuda"), False),
        ("cuda", "FLASH_ATTN", "fp8_e5m2", ServingSetup("vllm-cuda", "e5m2"), True),
        ("cuda", "TRITON_ATTN", "fp8_e4m3", ServingSetup("vllm-triton"), True),
        ("cuda", "FLASHINFER", "fp8_e4m3", ServingSetup("sglang"), False),
        ("cuda", "UNHEARD_OF", "fp8_e4m3", ServingSetup("vllm-cuda"), True),
        ("cuda", "UNHEARD_OF", "fp8_e4m3", ServingSetup("vllm-triton"), False),
        ("xpu", "FLASH_ATTN", "fp8_e4m3", ServingSetup("vllm-cuda"), False),
    ],
)
def test_the_effective_scales_are_what_ran_only_as_the_captured_engine_wrote_them(
    tmp_path: Path, device: str, backend: str, cache: str, setup: ServingSetup, ran: bool
) -> None:
    trace = make_trace(tmp_path, device=device, backend=backend, kv_cache_dtype=cache)
    for candidate in (EffectiveScales(setup), GivenScales("same", HALVES, setup)):
        applied = candidate.scales_for(trace)
        assert applied is not None
        assert applied.hypothetical is not ran
    other = UnitScales(setup).scales_for(trace)
    assert other is not None
    assert other.hypothetical


def test_a_reason_that_many_share_is_said_once(tmp_path: Path) -> None:
    trace = make_trace(tmp_path)
    artifact = load_artifact(ARTIFACTS / "ct_per_head")  # of a model of three layers
    shipped = [ArtifactScales(name, artifact) for name in "abcde"]
    wrong = ArtifactScales("f", artifact, ServingSetup("vllm-cpu", backend="FLASH_ATTN"))
    with pytest.raises(NoValidCandidateError) as raised:
        bind_candidates([UnitScales(), *shipped, wrong], {"day": trace})
    shared, own = str(raised.value).removeprefix("no candidate can be replayed: ").split("; f: ")
    assert shared.startswith("a, b, c and 2 more: ")
    assert shared.count("3 layers") == 1
    assert "FLASH_ATTN does not run on engine vllm-cpu" in own
