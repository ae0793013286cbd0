"""Lost answers and what clips on their requests: 40 requests, of which the tests choose who was lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace_capture.privacy import hash_client_id, key_id
from scipy.stats import mannwhitneyu
from support.fabricate import fabricate_trace, request
from support.fabricate_run import fabricate_run, run_record, source_record
from support.outcome_files import own_line, write_lines
from support.run_cli import kvtrace

from kvtrace.outcomes.collect import collect_outcomes, load_key
from kvtrace.outcomes.source import Choices, parse_source
from kvtrace.outcomes.table import read_outcomes
from kvtrace.quality.ranks import NUM_DRAWS, rank_test
from kvtrace.quality.tie import tie_quality
from kvtrace.quality.tie_text import tie_headline, tie_text
from kvtrace.runs.open import open_run
from kvtrace.trace.format import TraceRecord, seal, unseal
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.quality.tied import QualityTie

KEY = bytes(range(32))
NUM = 40
ROWS = 10
"""Captured rows a request: with 2 heads of K and of V, 40 vectors."""
CLIPS, FITS = 200, 50
"""Codes; the scales cover up to 100."""


def tied(folder: Path, lost: set[int], clipped: set[int], **changes: Any) -> QualityTie:
    """Return the tie where these requests clip in K's head 1 of layer 0, in one row of ten."""
    (folder / "kvtrace.key").write_bytes(KEY)
    (folder / "kvtrace.key").chmod(0o600)
    trace = fabricate_trace(
        folder / "t.kvtrace",
        {(0, t): np.ones((2, 2, 4)) for t in "kv"},
        request_of_row=[0, 0],
        position_of_row=[0, 1],
        requests=[request(n, prompt_tokens=ROWS, client_id=hash_client_id(KEY, f"q{n}")) for n in range(NUM)],
    )
    file = trace / "trace.json"
    record = unseal(file.read_text(), TraceRecord)
    privacy = record.privacy.model_copy(update={"key_id": key_id(KEY)})
    file.write_text(seal(record.model_copy(update={"privacy": privacy})))
    places = [(n * ROWS + at, n, at) for n in range(NUM) for at in range(ROWS)]
    heads = [(head, tensor) for head in (0, 1) for tensor in "kv"]
    fabricate_run(
        folder / "r.run",
        {
            "candidates": [
                {"candidate": "fp8", "ordinal": 0, "kind": "artifact", "status": "valid"},
            ],
            "sampling": [{"source": "t", "sampling_id": 0, "position_stride": 1, "request_fraction": 1.0}],
            "requests": [
                {"source": "t", "request": n, "workload": "chat", "sampled": True, "sampling_id": 0,
                 "prompt_tokens": ROWS, "num_rows": ROWS, "status": "stop"}
                for n in range(NUM)
            ],
            "rows": [
                {"source": "t", "row": row, "request": n, "position": at, "phase": "prefill",
                 "sampling_id": 0}
                for row, n, at in places
            ],
            "scales": [
                {"source": "t", "candidate": "fp8", "layer": 0, "kv_head": head, "tensor": tensor,
                 "scale": 0.5, "covered_amax": 224.0, "max_in_range_code": 100, "max_unclipped_code": 103,
                 "origin": "f"}
                for head, tensor in heads
            ],
            "vectors": [
                {"source": "t", "row": row, "layer": 0, "kv_head": head, "tensor": tensor,
                 "absmax_code": CLIPS if n in clipped and at == 0 and (head, tensor) == (1, "k") else FITS}
                for row, n, at in places
                for head, tensor in heads
            ],
        },
        run_record(source_record("t", trace_id=record.trace_id)),
    )  # fmt: skip
    lines = [
        own_line(f"q{n}", "fail" if name == "fp8" and n in lost else "pass", variant=name)
        for name in ("bf16-a", "fp8")
        for n in range(NUM)
    ]
    path = write_lines(folder / "o.jsonl", lines)
    collect_outcomes([parse_source(str(path), Choices())], folder / "o", load_key(folder / "kvtrace.key"))
    return tie_quality(
        [read_outcomes(folder / "o")], open_trace(trace), open_run(folder / "r.run"), **changes
    )


def test_the_head_that_clips_on_lost_answers_alone_is_named(tmp_path: Path) -> None:
    found = tied(tmp_path, lost=set(range(8)), clipped={*range(1, 8), 30})
    assert found.verdict == "goes with"
    assert tie_headline(found) == (
        "of 8 lost answers 7 had K clipped in layer 0 head 1, against 1 of 32 kept ones"
    )
    worst = found.lost[0]
    assert (worst.tensor, worst.worst_layer, worst.worst_kv_head) == ("k", 0, 1)
    assert worst.vectors_clipped_frac == pytest.approx(1 / 20)  # 1 of 10 rows in 1 of 2 heads
    assert (worst.rank, found.lost[-1].rank, found.lost[-1].id) == (1, 9, "q0")
    assert "need not be why they were lost" in " ".join(tie_text(found).split())


def test_clipping_everywhere_alike_tells_nothing(tmp_path: Path) -> None:
    found = tied(tmp_path, lost=set(range(8)), clipped=set(range(0, NUM, 2)))
    assert found.verdict == "nothing tells"
    assert "nothing that was captured tells lost from kept" in tie_text(found)


def test_few_lost_answers_are_too_few_however_well_they_part(tmp_path: Path) -> None:
    found = tied(tmp_path, lost={0, 1, 2, 3}, clipped={0, 1, 2, 3})
    assert (found.verdict, found.num_lost) == ("too few to tell", 4)


def test_the_command_names_what_has_to_be_chosen_and_prints_json(tmp_path: Path) -> None:
    tied(tmp_path, lost={0, 1, 2, 3, 4}, clipped={0, 1, 2, 3, 4})
    given = ("quality", "tie", tmp_path / "o", "--trace", tmp_path / "t.kvtrace", "--run", tmp_path / "r.run")
    shown = kvtrace(*given, "--json")
    assert json.loads(shown.stdout)["verdict"] == "goes with"
    wrong = kvtrace(*given, "--candidate", "other")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "has fp8; choose one of them with --candidate" in wrong.stderr


@given(st.lists(st.integers(0, 5), min_size=4, max_size=30), st.data())
@settings(deadline=None, max_examples=25)
def test_the_area_is_that_of_mann_and_whitney(values: list[int], data: st.DataObject) -> None:
    lost = data.draw(st.integers(1, len(values) - 1))
    is_lost = np.arange(len(values)) < lost
    column = np.array(values, float)
    u = mannwhitneyu(column[is_lost], column[~is_lost]).statistic
    found = rank_test(column[:, None], is_lost)
    assert found.auc[0] == pytest.approx(u / (lost * (len(values) - lost)))


def test_one_column_of_perfect_order_has_the_exact_chance() -> None:
    # Three of six labelled lost, all on top: 1 of 20 choices.
    found = rank_test(np.arange(6.0)[::-1, None], np.arange(6) < 3)
    assert found.p_value[0] == pytest.approx(1 / 20, abs=3 * (0.05 * 0.95 / NUM_DRAWS) ** 0.5)


def test_noise_columns_claim_one_of_them_in_about_one_of_twenty_data_sets() -> None:
    rng = np.random.default_rng(3)
    is_lost = np.arange(60) < 12
    claimed = sum(rank_test(rng.normal(size=(60, 50)), is_lost).p_value.min() <= 0.05 for _ in range(60))
    assert claimed <= 9  # of 60 at 5 %: P(more than 9) = 0.001
