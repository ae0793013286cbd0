"""Sums by request group and counts by magnitude: what intervals and quantiles of single values rest on."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import typer
from support.fabricate import bits, fabricate_trace, request
from typer.testing import CliRunner

from kvtrace.calibration.calibrate import calibrate
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.write import write_calibration
from kvtrace.candidates import ArtifactScales, Bf16, GivenScales, OnlineScales
from kvtrace.commands.report import report
from kvtrace.errors import InputError, IntegrityError, ReplayMismatchError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.profile.build import profile_tensors
from kvtrace.profile.ready import ready_profile
from kvtrace.profile.store import find_profile, write_profile
from kvtrace.scales import load_artifact
from kvtrace.trace.cells import find_cells, find_group_cells, request_group
from kvtrace.trace.profile_format import GROUPS_DIRECTORY
from kvtrace.trace.reader import open_trace
from tests.evaluation.test_replay import CELL_OF_ROW, GIVEN, make_tensors, make_trace, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.evaluation.request import Method
    from kvtrace.trace.reader import Trace

SUMS = ("num_vectors", "num_values", "num_out_of_range", "num_clipped", "num_flushed")
SQUARES = ("sum_sq_signal", "sum_sq_error", "sum_sq_clip_error")
HEAD = ("candidate", "layer", "kv_head", "tensor")
ROWS_PER_REQUEST = 3


def many_requests(path: Path) -> Trace:
    """40 requests of three tokens, two workloads, the last token generated."""
    rng = np.random.default_rng(8)
    tensors = {(0, t): rng.standard_t(3, (40 * ROWS_PER_REQUEST, 2, 8)).astype(np.float32) for t in "kv"}
    requests = [
        request(number, prompt_tokens=2, output_tokens=1, workload=("chat", "code")[number % 2])
        for number in range(40)
    ]
    return open_trace(
        fabricate_trace(
            path,
            tensors,
            request_of_row=np.repeat(np.arange(40), ROWS_PER_REQUEST).tolist(),
            position_of_row=list(range(ROWS_PER_REQUEST)) * 40,
            requests=requests,
            rows_per_chunk=32,
        )
    )


def scales_for(trace: Trace, value: float = 0.01) -> dict[tuple[int, int, str], float]:
    return {
        (layer.index, head, tensor): value
        for layer in trace.layers.values()
        for head in layer.kv_heads
        for tensor in "kv"
    }


def totals(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, float]]:
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        for name in (*SUMS, *SQUARES):
            found[tuple(row[key] for key in keys)][name] += row[name]
    return found


@pytest.mark.parametrize("method", ["profile", "direct", "verify"])
def test_groups_add_up_to_the_cells_of_a_workload_and_phase(tmp_path: Path, method: Method) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    candidates = [Bf16(), GivenScales("given", scales_for(trace, 0.004))]
    run = replay(ReplayRequest([trace], candidates, method=method, intervals=True), tmp_path / "run")
    keys = (*HEAD, "workload", "phase", "sampling_id")
    groups, cells = (totals(rows_of(run, table), keys) for table in ("groups", "cells"))
    assert groups.keys() == cells.keys()
    for key, sums in cells.items():
        assert {name: groups[key][name] for name in SUMS} == {name: sums[name] for name in SUMS}
        assert [groups[key][name] for name in SQUARES] == pytest.approx([sums[name] for name in SQUARES])
    assert sum(sums["num_clipped"] for sums in cells.values()) > 0


def test_a_group_holds_whole_requests_the_same_in_every_run(tmp_path: Path) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    runs = [
        replay(
            ReplayRequest([trace], [GivenScales("c", scales_for(trace, value))], intervals=True),
            tmp_path / f"{value}",
        )
        for value in (0.01, 1.0)
    ]
    expected = Counter(
        (("chat", "code")[number % 2], phase, int(request_group(np.array([number]))[0]))
        for number in range(40)
        for phase in ("prefill", "prefill", "decode")
    )
    for run in runs:
        rows = [row for row in rows_of(run, "groups") if (row["kv_head"], row["tensor"]) == (0, "k")]
        found = {(row["workload"], row["phase"], row["request_group"]): row["num_vectors"] for row in rows}
        assert found == expected


def test_a_replay_that_was_not_asked_for_intervals_makes_no_groups(tmp_path: Path) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
    assert rows_of(run, "groups") == []
    assert not (trace.path / GROUPS_DIRECTORY).exists()


def test_online_scales_have_no_groups_rather_than_groups_without_an_error(tmp_path: Path) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    candidates = [GivenScales("c", scales_for(trace)), OnlineScales("fp8-per-token-head")]
    run = replay(ReplayRequest([trace], candidates, intervals=True), tmp_path / "run")
    assert {row["candidate"] for row in rows_of(run, "groups")} == {"c"}


class TestProfileOfGroups:
    def test_a_second_use_reads_no_tensor(self, tmp_path: Path) -> None:
        trace = many_requests(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", scales_for(trace))]
        first = replay(ReplayRequest([trace], candidates, intervals=True), tmp_path / "first")
        for chunks in trace.path.glob("rank-0.zarr/layers/*/*/c"):
            shutil.rmtree(chunks)
        second = replay(
            ReplayRequest([open_trace(trace.path)], candidates, intervals=True), tmp_path / "second"
        )
        assert (first / "groups.parquet").read_bytes() == (second / "groups.parquet").read_bytes()

    def test_one_over_other_cells_is_not_believed(self, tmp_path: Path) -> None:
        trace = many_requests(tmp_path / "t.kvtrace")
        cpu = torch.device("cpu")
        with ready_profile(trace, find_cells(trace), cpu) as ready:
            shutil.copytree(ready.profile.path, trace.path / GROUPS_DIRECTORY)
        cells = find_group_cells(trace)
        with ready_profile(trace, cells, cpu, directory=GROUPS_DIRECTORY) as ready:
            assert ready.were_read
            assert ready.profile.is_over(cells)

    def test_an_interrupted_one_leaves_nothing(self, tmp_path: Path) -> None:
        trace = many_requests(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", scales_for(trace))]
        replay(ReplayRequest([trace], candidates), tmp_path / "plain")
        names = {path.name for path in trace.path.iterdir()}

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            replay(ReplayRequest([trace], candidates, intervals=True), tmp_path / "run", progress=interrupt)
        assert {path.name for path in trace.path.iterdir()} == names
        assert not (tmp_path / "run").exists()
        assert find_profile(trace, GROUPS_DIRECTORY) is None

    def test_verifying_replays_the_groups_both_ways_too(self, tmp_path: Path) -> None:
        trace = many_requests(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", scales_for(trace))]
        replay(ReplayRequest([trace], candidates, intervals=True), tmp_path / "first")
        cells = find_group_cells(trace)
        tensors = list(profile_tensors(trace, cells, torch.device("cpu")))
        count = tensors[0].count
        taken = 1 + int(np.flatnonzero(count[1:] > 1)[0])  # a count of 0 is no profile's
        count[taken - 1] += 1
        count[taken] -= 1
        shutil.rmtree(trace.path / GROUPS_DIRECTORY)
        write_profile(trace, cells, tensors, trace.path / GROUPS_DIRECTORY)
        with pytest.raises(ReplayMismatchError, match=rf"{GROUPS_DIRECTORY}: layer \d [kv].* Delete it"):
            replay(ReplayRequest([trace], candidates, method="verify", intervals=True), tmp_path / "second")

    def test_a_damaged_array_and_a_missing_chunk_are_named(self, tmp_path: Path) -> None:
        trace = many_requests(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", scales_for(trace))]
        replay(ReplayRequest([trace], candidates, intervals=True), tmp_path / "first")
        array = trace.path / GROUPS_DIRECTORY / "layers/00/k/count/c/0"
        content = bytearray(array.read_bytes())
        content[20] ^= 1
        array.write_bytes(content)
        with pytest.raises(IntegrityError, match=f"{GROUPS_DIRECTORY}/layers/00/k/count"):
            replay(ReplayRequest([trace], candidates, intervals=True), tmp_path / "second")
        (trace.path / "rank-0.zarr/layers/00/v/c/1/0/0").unlink()
        with pytest.raises(IntegrityError, match="layers/00/v/c/1/0/0"):
            find_profile(trace, GROUPS_DIRECTORY)


def test_magnitudes_are_counted_by_workload_and_sampling_rule(tmp_path: Path) -> None:
    tensors = make_tensors()
    trace = make_trace(tmp_path / "t.kvtrace", tensors)
    run = replay(ReplayRequest([trace], [GivenScales("c", GIVEN)]), tmp_path / "run")
    expected: Counter[tuple[Any, ...]] = Counter()
    for (_, tensor), values in tensors.items():
        stored = np.abs((bits(values).astype(np.uint32) << 16).view(np.float32))
        for row, (workload, _, _, sampling_id) in zip(stored, CELL_OF_ROW, strict=True):
            expected.update(
                (tensor, workload, sampling_id, value) for value in row[np.isfinite(row)].tolist()
            )
    keys = ("tensor", "workload", "sampling_id", "magnitude")
    rows = rows_of(run, "magnitudes")
    assert {tuple(row[key] for key in keys): row["num_values"] for row in rows} == expected
    assert len(rows) == len(expected)


def test_a_direct_replay_has_no_magnitudes(tmp_path: Path) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    assert (
        rows_of(replay(ReplayRequest([trace], [Bf16()], method="direct"), tmp_path / "run"), "magnitudes")
        == []
    )


def test_scales_carry_the_largest_magnitude_of_their_calibration(tmp_path: Path) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    made = calibrate([trace], Recipe(), DatasetRules())
    write_calibration(tmp_path / "scales", made, checkpoint=None)
    artifact = load_artifact(tmp_path / "scales")
    candidates = [GivenScales("given", scales_for(trace)), ArtifactScales("calibrated", artifact)]
    run = replay(ReplayRequest([trace], candidates), tmp_path / "run")
    live: dict[Any, float] = defaultdict(float)
    for row in rows_of(run, "cells"):
        key = row["layer"], row["kv_head"], row["tensor"]
        live[key] = max(live[key], row["max_abs"])
    for row in rows_of(run, "scales"):
        key = row["layer"], row["kv_head"], row["tensor"]
        assert row["calibrated_amax"] == (None if row["candidate"] == "given" else live[key])


def sqnr_ends(trace: Trace, *options: str) -> set[bool]:
    """Whether the strata of `kvtrace report TRACE --json` have an interval of their SQNR."""
    app = typer.Typer()
    app.command()(report)
    printed = CliRunner().invoke(app, [str(trace.path), "--json", *options], catch_exceptions=False)
    assert printed.exit_code == 0
    workloads = json.loads(printed.stdout)["workloads"]
    return {one["intervals"]["sqnr_low_db"] is not None for one in workloads}


def test_a_report_of_a_trace_has_intervals_unless_told_not_to_or_without_tensors(tmp_path: Path) -> None:
    trace = many_requests(tmp_path / "t.kvtrace")
    assert sqnr_ends(trace, "--no-intervals") == {False}
    assert not (trace.path / GROUPS_DIRECTORY).exists()
    assert sqnr_ends(trace) == {True}
    shutil.rmtree(trace.path / GROUPS_DIRECTORY)
    for chunks in trace.path.glob("rank-0.zarr/layers/*/*/c"):
        shutil.rmtree(chunks)
    assert sqnr_ends(trace) == {False}
    with pytest.raises(InputError, match="its tensors are not there any more, and a profile of them needs"):
        sqnr_ends(trace, "--intervals")
