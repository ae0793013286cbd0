"""The audit within a replay says what `kvtrace scales` says, without reading the tensors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from incidents.bench import new_bench, times

from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.candidates import ServingSetup, standard_candidates
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.report.scales.build import scales_report
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.evaluation.request import Method

MEASURED_BY_THE_RUN = {"clipping", "too-wide"}


@pytest.mark.parametrize("method", ["profile", "direct"])
def test_the_findings_of_a_run_are_those_of_the_audit(tmp_path: Path, method: Method) -> None:
    bench = new_bench(8, tmp_path)
    bench.calibrated(Recipe(), DatasetRules(max_position=300, workloads=("code", "chat")), "short")
    bench.ship(times(bench.scales(), 1 / 1.35, "k"), "narrow", observer="minmax")
    bench.ship({key: values[::-1] for key, values in bench.scales().items()}, "turned")
    bench.scale_values(2, bench.position >= 1024, bench.heads[:3])
    trace = open_trace(bench.write("incident"))
    artifacts = [load_artifact(path) for path in bench.artifacts]
    candidates = standard_candidates([trace], artifacts, ServingSetup("vllm-cuda"))
    run = replay(ReplayRequest([trace], candidates, method=method, device="cpu"), tmp_path / "run")
    rows = pq.read_table(run / "findings.parquet").to_pylist()
    for artifact in artifacts:
        expected = [
            (f.id, f.severity, f.message, f.action, list(f.layers) or None)
            for f in scales_report(artifact, trace, engine="vllm-cuda").findings
            if f.id not in MEASURED_BY_THE_RUN
        ]
        found = [row for row in rows if row["candidate"] == artifact.name]
        assert [
            tuple(row[k] for k in ("id", "severity", "message", "action", "layers")) for row in found
        ] == (expected)
        assert [row["ordinal"] for row in found] == list(range(len(found)))
        assert all(isinstance(json.loads(row["evidence"]), dict) for row in found)
    assert {row["id"] for row in rows} >= {"short-calibration", "outside-envelope", "ema-observer"}


def test_an_artifact_that_cannot_be_used_is_audited_too(tmp_path: Path) -> None:
    bench = new_bench(8, tmp_path)
    bench.ship(bench.scales(), "sound")
    scales = bench.scales(Recipe(granularity="tensor"))
    bench.ship(scales | {(layer + 5, tensor): v for (layer, tensor), v in scales.items()}, "other")
    trace = open_trace(bench.write("incident"))
    candidates = standard_candidates([trace], [load_artifact(path) for path in bench.artifacts])
    run = replay(ReplayRequest([trace], candidates, device="cpu"), tmp_path / "run")
    rows = pq.read_table(run / "findings.parquet").to_pylist()
    assert ("other", "wrong-model") in {(row["candidate"], row["id"]) for row in rows}


def test_candidates_without_an_artifact_have_no_findings(tmp_path: Path) -> None:
    bench = new_bench(8, tmp_path)
    trace = open_trace(bench.write("incident"))
    run = replay(ReplayRequest([trace], standard_candidates([trace], []), device="cpu"), tmp_path / "run")
    assert pq.read_table(run / "findings.parquet").num_rows == 0


def test_a_candidate_carries_the_length_that_its_manifest_says_it_was_calibrated_at(tmp_path: Path) -> None:
    bench = new_bench(8, tmp_path)
    bench.calibrated(Recipe(), DatasetRules(max_position=300), "short")
    bench.ship(bench.scales(), "untold")
    trace = open_trace(bench.write("incident"))
    candidates = standard_candidates([trace], [load_artifact(path) for path in bench.artifacts])
    run = replay(ReplayRequest([trace], candidates, device="cpu"), tmp_path / "run")
    lengths = {
        row["candidate"]: row["calibrated_max_length"]
        for row in pq.read_table(run / "candidates.parquet").to_pylist()
    }
    longest = int(bench.position[bench.position < 300].max())
    assert lengths == dict.fromkeys(lengths) | {"short": longest + 1}
