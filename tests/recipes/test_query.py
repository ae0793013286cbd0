"""To add a query: its file. What it takes and gives stands in its header, and nothing else names queries."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np
from support.fabricate import fabricate_trace, request
from support.recipe import TreeCopy

if TYPE_CHECKING:
    from pathlib import Path

QUERY = """-- How many captured tokens each workload has, from some position on.
-- Grain: one row per workload.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \\
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/toy_tokens.sql
--
-- Parameters
--   least     whole number from 0; 0  positions below it do not count
--   workload  workload; all           this workload alone
--
-- Columns
--   workload    the client's label, or unlabelled
--   num_tokens  captured tokens
SELECT workload, count(*) AS num_tokens
FROM tokens
WHERE position >= coalesce(getvariable('least')::INTEGER, 0)
  AND is_asked(getvariable('workload'), workload)
GROUP BY workload
ORDER BY workload;
"""


def test_a_query_takes_one_file(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path / "tree")
    tree.add("queries/toy_tokens.sql", QUERY)
    assert len(tree.touched()) == 1

    trace = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(0, t): np.ones((9, 1, 3), np.float32) for t in "kv"},
        requests=[
            request(0, prompt_tokens=5, workload="chat"),
            request(1, prompt_tokens=4, workload="code"),
        ],
        request_of_row=[0] * 5 + [1] * 4,
        position_of_row=[*range(5), *range(4)],
    )
    run = tmp_path / "run"
    made = tree.run("-m", "kvtrace", "replay", trace, "-o", run)
    assert made.returncode == 0, made.stderr

    def asked(*parameters: str) -> list[list[str]]:
        options = [word for parameter in parameters for word in ("--param", parameter)]
        done = tree.run("-m", "kvtrace", "query", run, "toy_tokens", *options, "--format", "csv")
        assert done.returncode == 0, done.stderr
        return list(csv.reader(io.StringIO(done.stdout)))

    assert asked() == [["workload", "num_tokens"], ["chat", "5"], ["code", "4"]]
    assert asked("least=3", "workload=chat") == [["workload", "num_tokens"], ["chat", "2"]]
    refused = tree.run("-m", "kvtrace", "query", run, "toy_tokens", "--param", "workload=none")
    assert refused.returncode == 2
    assert "expected one of chat, code" in refused.stderr
    assert "toy_tokens" in tree.run("-m", "kvtrace", "query", "--list").stdout
