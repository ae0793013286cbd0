"""A trace of an engine that was switched off amid a request, through the commands that read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fabricate import fabricate_trace, request
from run_cli import kvtrace

from kvtrace.trace.format import SamplingRecord

if TYPE_CHECKING:
    from pathlib import Path

CUT = 6
"""Positions of request 1 that were captured; it computed 10."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [(0, position) for position in range(10)] + [(1, position) for position in range(CUT)]
    values = np.random.default_rng(0).normal(size=(len(rows), 2, 4))
    off = {"missing": ((CUT, 10),), "switched_off": ((CUT, 10),)}
    return fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, "k"): values, (0, "v"): values},
        request_of_row=[number for number, _ in rows],
        position_of_row=[position for _, position in rows],
        requests=[
            request(0, prompt_tokens=8, output_tokens=2, sampling_id=1),
            request(1, prompt_tokens=8, output_tokens=2, sampling_id=1, **off),
        ],
        sampling=[
            SamplingRecord(sampling_id=0, started_at=1.0, request_fraction=0.0),
            SamplingRecord(sampling_id=1, started_at=2.0, position_stride=1),
            SamplingRecord(sampling_id=2, started_at=3.0, request_fraction=0.0),
        ],
    )


def test_inspect_tells_what_was_switched_off_from_what_was_lost(trace: Path) -> None:
    shown = kvtrace("inspect", trace).stdout
    assert "sampling  #0: switched off" in shown
    assert "sampling  #1: 1 in 1 positions of 100% of requests" in shown
    assert "16 of 16 sampled positions of finished requests are stored" in shown
    assert "4 positions computed while capture was switched off" in shown
    assert "1 requests captured only in part" in shown
    assert "prefix cache" not in shown


def test_a_run_counts_the_cut_request_as_incomplete_and_shows_no_rules_that_captured_nothing(
    trace: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r.run"
    assert kvtrace("replay", trace, "-o", run).returncode == 0
    report = json.loads(kvtrace("report", run, "--format", "json").stdout)
    assert [rules["sampling_id"] for rules in report["sampling"]] == [1]
    assert [(one["num_incomplete_requests"], one["num_missing"]) for one in report["captured"]] == [(1, 4)]
