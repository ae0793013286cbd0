"""Scales in bfloat16: what lies just beyond the covered range, by the engine that clips or does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request

from kvtrace.calibration.save import save_scales
from kvtrace.findings.artifact.audit import audit_context
from kvtrace.findings.artifact.observed import observe
from kvtrace.numerics import ENGINES
from kvtrace.numerics.captured import magnitudes_of
from kvtrace.numerics.limits import max_unclipped_code
from kvtrace.report.scales.build import scales_report
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import Trace


@pytest.fixture
def served(tmp_path: Path) -> tuple[Trace, ScaleArtifact]:
    """Scale 1 in bfloat16, which covers 448; K reaches 470 and 456, V 482. Engines clip at 464 or 480."""
    k, v = np.ones((2, 1, 8)), np.ones((2, 1, 8))
    k[0, 0, 0], v[0, 0, 0] = 470, 482
    path = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(0, "k"): k, (0, "v"): v, (1, "k"): k * (456 / 470), (1, "v"): np.ones((2, 1, 8))},
        request_of_row=[0, 1],
        position_of_row=[0, 0],
        requests=[request(number, prompt_tokens=1) for number in range(2)],
    )
    save_scales(tmp_path / "ones", {(layer, tensor): (1.0,) for layer in range(2) for tensor in "kv"})
    return open_trace(path), load_artifact(tmp_path / "ones")


@pytest.mark.parametrize(
    ("engine", "num_just_beyond", "percent"), [("vllm-cuda", 1, "3.6 %"), ("vllm-cpu", 2, "7.1 %")]
)
def test_a_range_that_the_engine_does_not_clip_is_just_beyond(
    served: tuple[Trace, ScaleArtifact], engine: str, num_just_beyond: int, percent: str
) -> None:
    trace, artifact = served
    report = scales_report(artifact, trace, engine=engine)
    (finding,) = [one for one in report.findings if one.id == "bf16-rounding"]
    assert finding.evidence["num_just_beyond"] == num_just_beyond
    assert f"as {engine} writes it clips from {percent} beyond" in finding.action


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_audit_clips_where_the_engines_cache_write_does(
    served: tuple[Trace, ScaleArtifact], engine: str
) -> None:
    trace, artifact = served
    observed = observe(trace, "tensor", engine=engine)
    context = audit_context(artifact, trace, engine=engine, observed=observed)
    code = max_unclipped_code(np.array([1.0]), "bfloat16", engine=engine, format="e4m3fn")
    last, beyond = magnitudes_of(np.array([code[0], code[0] + 1]), "bfloat16").tolist()
    assert last <= context.clip_ratio * 448 <= beyond
