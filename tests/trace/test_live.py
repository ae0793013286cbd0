"""A trace while its engine runs, and after it was killed: what waits is not lost, what is lost is said."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING

import numpy as np
from kvtrace_capture.writer import StepRows, TraceWriter
from support.fabricate import bits, fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.trace.completeness import rows_lost
from kvtrace.trace.format import RANK_FILE, RankRecord, unseal
from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize
from kvtrace.trace.summary_text import summary_text

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [(0, "k"), (0, "v")]
REQUESTS = [request(number, prompt_tokens=4) for number in range(2)]
"""Both are finished, by their lines: these are committed at once."""


def new_trace(path: Path) -> RankRecord:
    """Write all of a trace but its store, and return what the store is to be."""
    fabricate_trace(
        path,
        {key: np.ones((8, 2, 4)) for key in KEYS},
        request_of_row=[0, 0, 0, 0, 1, 1, 1, 1],
        position_of_row=[0, 1, 2, 3] * 2,
        requests=REQUESTS,
        rows_of_rank=[[]],
        kv_cache_dtype="fp8",
    )
    store = path / "rank-0.zarr"
    record = unseal((store / RANK_FILE).read_bytes(), RankRecord)
    store.rename(path / "unused")
    return record


def rows_of(number: int) -> StepRows:
    values = bits(np.full((4, 2, 4), 1.0 + number))
    ids = np.full(4, number, dtype=np.int32)
    return StepRows(
        request=ids,
        position=np.arange(4, dtype=np.int32),
        sampling_id=np.zeros(4, dtype=np.int32),
        step=number,
        tensors=dict.fromkeys(KEYS, values),
    )


def start_writing(path: Path) -> TraceWriter:
    """Commit the rows of request 0, and leave those of request 1 waiting."""
    writer = TraceWriter(path / "rank-0.zarr", new_trace(path), flush_seconds=3600)
    assert writer.append(rows_of(0))
    writer.flush()
    assert writer.append(rows_of(1))
    return writer


def write_and_die(path: Path) -> None:
    start_writing(path)
    os.kill(os.getpid(), signal.SIGKILL)


def test_rows_that_wait_for_a_commit_are_pending_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "live.kvtrace"
    writer = start_writing(path)
    try:
        trace = open_trace(path)
        assert trace.is_running
        assert dict(rows_lost(trace)) == {0: 0, 1: 0}
        summary = summarize(trace)
        assert (summary.running, summary.completeness.num_pending) == (True, 4)
        assert summary.completeness.num_uncommitted == 0
        text = summary_text(summary)
        assert "4 rows wait for the next commit of the engine, which still runs" in text
        assert "the engine still runs: more rows may come" in text
        assert "last commit 20" in text
        told = kvtrace("report", path).stdout
        assert "Its engine still ran: what it stored later is not in here." in " ".join(told.split())
        assert "rows were lost" not in told
    finally:
        writer.close()
    ended = summarize(open_trace(path))
    assert (ended.running, ended.closed, ended.completeness.num_pending) == (False, True, 0)
    assert ended.completeness.num_stored == ended.completeness.num_expected == 8


def test_rows_that_a_killed_engine_had_not_committed_are_lost_and_called_so(tmp_path: Path) -> None:
    path = tmp_path / "killed.kvtrace"
    process = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(path,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    trace = open_trace(path)
    assert not trace.is_running
    assert dict(rows_lost(trace)) == {0: 0, 1: 4}
    summary = summarize(trace)
    assert (summary.completeness.num_pending, summary.completeness.num_uncommitted) == (0, 4)
    text = summary_text(summary)
    assert "4 rows were not committed when the engine was killed" in text
    assert "not closed in order: the last rows may be lost" in text


def test_a_live_trace_without_a_committed_row_is_shown_and_a_report_says_when_to_ask_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "young.kvtrace"
    writer = TraceWriter(path / "rank-0.zarr", new_trace(path), flush_seconds=3600)
    try:
        shown = kvtrace("inspect", path)
        assert shown.returncode == 0, shown.stderr
        assert "every effective K and V scale is 1" in shown.stdout
        assert "the engine still runs" in shown.stdout
        refused = kvtrace("report", path)
        assert refused.returncode == 2
        assert "holds no committed row. Its engine still runs" in refused.stderr
    finally:
        writer.close()
