"""A trace of an engine that was switched off amid a request, through the commands that read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

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


@pytest.fixture
def run(trace: Path, tmp_path: Path) -> Path:
    path = tmp_path / "r.run"
    assert kvtrace("replay", trace, "-o", path).returncode == 0
    return path


def found(run: Path, sql: str) -> list[list[object]]:
    result = kvtrace("query", run, "--sql", sql, "--format", "json")
    assert result.returncode == 0, result.stderr
    return [list(row.values()) for row in json.loads(result.stdout)]


def test_a_runs_tables_hold_what_was_captured_of_the_cut_request_and_mark_every_token_of_it(
    run: Path,
) -> None:
    of_requests = "SELECT request, num_rows, num_missing, num_dropped FROM requests ORDER BY request"
    assert found(run, of_requests) == [[0, 10, 0, 0], [1, CUT, 10 - CUT, 0]]
    of_rows = "SELECT request, count(*), max(position) FROM rows GROUP BY ALL ORDER BY request"
    assert found(run, of_rows) == [[0, 10, 9], [1, CUT, CUT - 1]]
    of_tokens = "SELECT request, incomplete, count(*) FROM tokens GROUP BY ALL ORDER BY request"
    assert found(run, of_tokens) == [[0, False, 10], [1, True, CUT]]


def test_the_report_counts_the_cut_request_as_partial_and_shows_no_rules_that_captured_nothing(
    run: Path,
) -> None:
    report = json.loads(kvtrace("report", run, "--format", "json").stdout)
    assert [rules["sampling_id"] for rules in report["sampling"]] == [1]
    assert [(one["num_incomplete_requests"], one["num_missing"]) for one in report["captured"]] == [(1, 4)]
    lines = kvtrace("report", run).stdout.splitlines()
    header = next(line for line in lines if line.endswith("missing  dropped  partial"))
    assert lines[lines.index(header) + 1].split()[-3:] == ["4", "0", "1"]


def test_the_gate_says_how_many_requests_were_not_captured_in_full(run: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'name = "p"\ndate = 2020-01-01\n[limits]\nsqnr_db = 1\n'
        '[coverage]\nrequests = 2\ntokens = 10\n[[segments]]\nname = "all"\n'
    )
    checked = kvtrace("check", run, "--policy", policy, "--candidate", "unit", "--format", "json")
    assert [one["num_incomplete_requests"] for one in json.loads(checked.stdout)["segments"]] == [1]
    text = kvtrace("check", run, "--policy", policy, "--candidate", "unit").stdout
    assert "2 requests, 1 of them not captured in full, 16 tokens" in text
