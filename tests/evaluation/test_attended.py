"""Harm in a run: what the replay writes of a trace with queries, and of one without."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.attention_trace import trace_with_queries
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.attention.projection import find_projections
from kvtrace.attention.trace_replay import replay_attention, residual_sums
from kvtrace.candidates.bind import bind_candidates
from kvtrace.evaluation.replay import replay
from kvtrace.evaluation.request import standard_request
from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.report.build import build_report
from kvtrace.runs.open import open_run
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace_with_queries(tmp_path_factory.mktemp("attended") / "t.kvtrace")


def harm(run: Path, query: str = "harm") -> list[dict[str, Any]]:
    return list(run_query(connect_with_views(open_run(run)), find_query(query)).records())


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    names = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(2)]
    save_file(
        {name: torch.randn(32, 64, generator=generator) for name in names}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text('{"num_hidden_layers": 2}')
    return folder


def test_a_report_with_harm_no_longer_lists_attention_as_unseen_and_two_requests_choose_no_format(
    trace: Path, tmp_path: Path
) -> None:
    run = replay(standard_request([open_trace(trace)]), tmp_path / "run")
    report = build_report(open_run(run))
    assert report.harm is not None
    assert not any("attention that ranks" in one for one in report.not_visible)
    (which,) = (one for one in report.answer.questions if one.id == "format")
    assert (which.answer, which.because) == ("– not measured", "too few requests")


def test_a_trace_with_queries_gets_harm_and_fresh_scales_unasked(trace: Path, tmp_path: Path) -> None:
    request_ = standard_request([open_trace(trace)], cache_dtypes=["int8_per_token_head"])
    rows = {row["candidate"]: row for row in harm(replay(request_, tmp_path / "run"))}
    assert list(rows) == ["bf16", "unit", "fresh scales", "int8_per_token_head"]
    assert {row["knowledge"] for row in rows.values()} == {"heads"}
    assert rows["bf16"]["harm"] == 0
    assert 0 < rows["int8_per_token_head"]["harm"] < rows["fresh scales"]["harm"]
    assert rows["fresh scales"]["drift"] == 0
    assert rows["int8_per_token_head"]["drift"] is None  # nothing that could be stale
    assert (rows["unit"]["num_requests"], rows["unit"]["num_probes"]) == (2, 8)


def test_a_run_says_what_the_replay_of_attention_says(trace: Path, tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model")
    opened = open_trace(trace)
    for projections in (None, find_projections(model, opened.cache_layers)):
        request_ = standard_request([opened], checkpoint=model if projections else None)
        run = replay(request_, tmp_path / f"run-{projections is None}")
        bound = bind_candidates(request_.candidates, {"t": opened}).in_source("t")
        expected = residual_sums(replay_attention(opened, bound, projections=projections)).error()
        found = harm(run)
        assert {row["knowledge"] for row in found} == {expected.knowledge}
        assert [row["harm"] for row in found] == pytest.approx(expected.total.tolist(), rel=1e-9)
        by_layer = np.array([row["harm"] for row in harm(run, "harm_by_layer")]).reshape(-1, 2)
        assert by_layer == pytest.approx(expected.by_layer, rel=1e-9)


def test_fresh_scales_just_cover_what_was_captured(trace: Path, tmp_path: Path) -> None:
    run = replay(standard_request([open_trace(trace)]), tmp_path / "run")
    rows = connect_with_views(open_run(run)).execute(
        "SELECT max(max_abs / covered_amax), count(DISTINCT scale), sum(num_clipped) FROM cells "
        "JOIN scales USING (source, candidate, layer, kv_head, tensor) WHERE candidate = 'fresh scales'"
    )
    largest, scales, clipped = rows.fetchone()
    assert largest <= 1.0001  # rows that are kept for attention alone are covered too
    assert (scales, clipped) == (4, 0)


def test_attention_that_was_left_out_is_said_to_be_and_costs_no_fresh_scales(
    trace: Path, tmp_path: Path
) -> None:
    assert kvtrace("replay", trace, "--no-attention", "-o", tmp_path / "run").returncode == 0
    run = open_run(tmp_path / "run")
    assert harm(run.path) == []
    report = build_report(run)
    assert [one.candidate for one in report.candidates] == ["bf16", "unit"]
    assert report.answer.matters[-1] == "harm was not measured: it was left out"
    lacking = report.answer.not_measured[0]
    assert (lacking.what, lacking.why) == ("harm", "it was left out (--no-attention)")
    assert "attention was left out" in report.answer.questions[1].because
    again = kvtrace(*shlex.split(lacking.command or "")[1:], "--section", "harm")
    assert again.returncode == 0
    assert again.stdout.startswith("HARM")


def test_the_command_that_measures_harm_by_layer_runs_where_the_model_is_here(
    trace: Path, tmp_path: Path
) -> None:
    run = replay(standard_request([open_trace(trace)]), tmp_path / "run")
    (lacking,) = (
        one for one in build_report(open_run(run)).answer.not_measured if one.what.startswith("harm")
    )
    assert lacking.why == "W_O is read from the model: give --checkpoint"
    assert lacking.command is None  # the traced model is nowhere here


def test_without_queries_there_is_no_harm_and_no_fresh_scales(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, t): np.ones((4, 1, 4), np.float32) for t in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    run = replay(standard_request([open_trace(path)]), tmp_path / "run")
    assert harm(run) == []
    assert harm(run, "harm_by_layer") == []
    lacking = build_report(open_run(run)).answer.not_measured[0]
    assert lacking.why == "the trace holds no queries"
    flags = kvtrace(*shlex.split(lacking.command or "")[1:])
    assert flags.returncode == 0
    assert '"queries": "probe"' in flags.stdout
    connection = connect_with_views(open_run(run))
    assert connection.execute("SELECT candidate FROM candidates ORDER BY ordinal").fetchall() == [
        ("bf16",),
        ("unit",),
    ]


def test_a_layer_that_cannot_be_replayed_costs_harm_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = trace_with_queries(tmp_path / "t.kvtrace", not_replayable=("alibi_slopes",))
    run = replay(standard_request([open_trace(path)]), tmp_path / "run")
    assert harm(run) == []
    assert "harm is not measured: layer 0" in caplog.text
    assert "alibi_slopes" in caplog.text
