"""`kvtrace inspect --repair`: what it keeps of which damage, and how what is lost can be seen."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import duckdb
import pytest
from faults.damage import Damage, kind_of_file
from faults.fuzz import Fuzz
from faults.scratch import scratch
from support.fabricate import bits, fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.errors import InputError, OutputExistsError
from kvtrace.trace.format import seal, unseal
from kvtrace.trace.lines import LinesCommit
from kvtrace.trace.reader import open_trace
from kvtrace.trace.repair.repair import repair_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

import numpy as np

ROWS = 140
"""Two requests of 70 positions in three chunks of 64 rows, the last with 12: request 1 starts at row 70."""


@pytest.fixture(scope="module")
def values() -> dict[tuple[int, str], np.ndarray]:
    rng = np.random.default_rng(3)
    return {(layer, tensor): rng.normal(size=(ROWS, 2, 4)) for layer in range(2) for tensor in ("k", "v")}


@pytest.fixture
def trace(tmp_path: Path, values: dict[tuple[int, str], np.ndarray]) -> Path:
    return fabricate_trace(
        tmp_path / "t.kvtrace",
        values,
        request_of_row=[row // 70 for row in range(ROWS)],
        position_of_row=[row % 70 for row in range(ROWS)],
        requests=[request(0, prompt_tokens=60, output_tokens=10), request(1, prompt_tokens=70)],
    )


def break_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def stored(path: Path, layer: int, tensor: str) -> dict[tuple[int, int], list]:
    """Return (request, position) → the two heads' bits."""
    opened = open_trace(path)
    return {
        (int(opened.tokens.request[row]), int(opened.tokens.position[row])): vectors.tolist()
        for block in opened.blocks()
        if (block.layer.index, block.tensor) == (layer, tensor)
        for row, vectors in zip(block.row, block.values, strict=True)
    }


def test_one_damaged_tensor_chunk_costs_its_64_rows_in_that_tensor_and_nothing_else(
    trace: Path, values: dict[tuple[int, str], np.ndarray]
) -> None:
    break_file(trace / "rank-0.zarr/layers/01/v/c/1/0/0")  # rows 64 to 127: 6 of request 0, 58 of request 1
    new = trace.with_name("new.kvtrace")
    result = kvtrace("inspect", trace, "--repair", "-o", new)
    assert result.returncode == 0
    assert "rank 0, row chunk 1: 64 rows of 2 requests in layer 1 v" in result.stdout
    assert "kept      76 of 140 rows whole, 64 without the tensors listed here" in result.stdout
    for layer, tensor in values:
        rows = [n for n in range(ROWS) if (layer, tensor) != (1, "v") or not 64 <= n < 128]
        expected = {(n // 70, n % 70): bits(values[layer, tensor])[n].tolist() for n in rows}
        assert stored(new, layer, tensor) == expected
    assert open_trace(new).ranks[0].dropped == {0: {"damaged": 6}, 1: {"damaged": 58}}
    assert kvtrace("inspect", new, "--verify").returncode == 0


def test_the_new_trace_says_that_it_is_repaired_what_it_lost_and_from_which_digest(trace: Path) -> None:
    digest = open_trace(trace).digest
    break_file(trace / "rank-0.zarr/layers/01/v/c/1/0/0")
    new = trace.with_name("new.kvtrace")
    report = json.loads(kvtrace("inspect", trace, "--repair", "-o", new, "--format", "json").stdout)
    assert json.loads((new / "trace.json").read_text())["repaired_from"] == digest == report["from_digest"]
    (lost,) = report["chunks"]
    assert (lost["rank"], lost["chunk"], lost["layer"], lost["tensor"], lost["num_rows"]) == (
        0,
        1,
        1,
        "v",
        64,
    )
    summary = json.loads(kvtrace("inspect", new, "--json").stdout)
    assert summary["repair"]["chunks"] == report["chunks"]
    (new / "repair.json").unlink()
    result = kvtrace("inspect", new)
    assert result.returncode == 2
    assert "repair.json" in result.stderr


def test_a_replay_of_the_new_trace_counts_lost_vectors_as_absent_and_their_requests_as_incomplete(
    trace: Path,
) -> None:
    for name in ("k/c/0/0/0", "k/c/1/0/0", "k/c/2/0/0"):  # all of layer 0's K
        break_file(trace / "rank-0.zarr/layers/00" / name)
    (trace / "rank-0.zarr/layers/01/v/c/1/0/0").unlink()
    new, run = trace.with_name("new.kvtrace"), trace.with_name("r.run")
    repair_trace(trace, new)
    result = kvtrace("replay", new, "-o", run, "--verify")  # over counts and element by element
    assert result.returncode == 0, result.stderr
    vectors = f"SELECT layer, tensor, count(*) FROM '{run}/vectors.parquet' GROUP BY ALL ORDER BY ALL"
    # two heads a row; of layer 1's V, 64 rows are gone
    assert duckdb.sql(vectors).fetchall() == [(0, "v", 280), (1, "k", 280), (1, "v", 152)]
    counted = f"""SELECT layer, tensor, sum(num_values), sum(sum_sq_signal) > 0 FROM '{run}/cells.parquet'
        WHERE candidate = 'bf16' GROUP BY ALL HAVING sum(num_values) > 0 ORDER BY ALL"""
    assert duckdb.sql(counted).fetchall() == [
        (0, "v", 1120, True), (1, "k", 1120, True), (1, "v", 608, True)
    ]  # fmt: skip
    dropped = f"SELECT request, num_dropped FROM '{run}/requests.parquet' ORDER BY request"
    assert duckdb.sql(dropped).fetchall() == [(0, 70), (1, 70)]


def test_rows_whose_columns_are_damaged_are_left_out_and_their_requests_marked_by_what_they_lack(
    trace: Path,
) -> None:
    (trace / "rank-0.zarr/rows/kv/position/c/0").unlink()  # rows 0 to 63, all of request 0
    new = trace.with_name("new.kvtrace")
    repair = repair_trace(trace, new)
    assert [(lost.chunk, lost.layer, lost.num_rows, lost.requests) for lost in repair.chunks] == [
        (0, None, 64, None)
    ]
    opened = open_trace(new)
    assert opened.tokens.position[opened.tokens.request == 0].tolist() == list(range(64, 70))
    assert opened.ranks[0].num_chunks == 2
    assert opened.ranks[0].dropped == {0: {"damaged": 64}}


def test_a_request_whose_last_line_may_be_lost_is_left_out_since_its_end_is_not_known(trace: Path) -> None:
    first, second = (trace / "requests.jsonl").read_text().splitlines()
    running = second.replace('"stop"', '"running"')
    assert running != second
    from kvtrace.trace.format import RequestRecord, seal

    record = RequestRecord.model_validate(json.loads(running))
    broken = first.replace('"chat"', '"code"')
    (trace / "requests.jsonl").write_text(f"{first}\n{seal(record)}\n{broken}\n")
    repair = repair_trace(trace, trace.with_name("new.kvtrace"))
    assert repair.requests_left_out == (1,)
    assert set(open_trace(trace.with_name("new.kvtrace")).tokens.request.tolist()) == {0}


def test_a_lost_commit_takes_its_ranks_rows_and_leaves_the_other_ranks(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, "k"): np.ones((3, 4, 2)), (0, "v"): np.ones((3, 4, 2))},
        request_of_row=[0, 0, 0],
        position_of_row=[0, 1, 2],
        requests=[request(0, prompt_tokens=3)],
        ranks=[[0, 1], [2, 3]],
    )
    (path / "rank-1.zarr/commit.json").write_text("{}")
    repair = repair_trace(path, tmp_path / "new.kvtrace")
    assert repair.emptied_ranks == (1,)
    opened = open_trace(tmp_path / "new.kvtrace")
    assert {head for block in opened.blocks() if len(block.row) for head in block.kv_heads} == {0, 1}
    assert opened.layers[0].kv_heads == (0, 1, 2, 3)
    assert opened.ranks[1].dropped == {0: {"damaged": 3}}


@pytest.mark.parametrize("name", ["trace.json", "requests.jsonl", "rank-0.zarr/commit.json"])
def test_where_nothing_can_be_kept_it_says_so_and_writes_nothing(trace: Path, name: str) -> None:
    (trace / name).unlink()
    with pytest.raises(InputError, match=r"nothing can be kept: .*(lines|commit\.json)|is not a trace"):
        repair_trace(trace, trace.with_name("new.kvtrace"))
    assert [path.name for path in trace.parent.iterdir()] == ["t.kvtrace"]


def test_a_sound_trace_is_copied_whole_and_nothing_is_called_lost(trace: Path) -> None:
    new = trace.with_name("new.kvtrace")
    assert repair_trace(trace, new).is_complete
    for layer, tensor in ((0, "k"), (1, "v")):
        assert stored(new, layer, tensor) == stored(trace, layer, tensor)


def test_what_the_capture_could_not_write_is_still_said_of_the_new_trace(trace: Path) -> None:
    committed, new = trace.with_name("committed.kvtrace"), trace.with_name("new.kvtrace")
    repair_trace(trace, committed)  # a fabricated trace has no commits of lines, a repaired one has
    file = committed / "requests.commit.json"
    file.write_text(seal(unseal(file.read_bytes(), LinesCommit).model_copy(update={"num_lost": 3})))
    assert kvtrace("inspect", committed, "--repair", "-o", new).returncode == 0
    assert "3 records of requests could not be written" in kvtrace("inspect", new).stdout


def test_nothing_that_exists_is_overwritten_and_the_original_stays_as_it_is(trace: Path) -> None:
    new = trace.with_name("new.kvtrace")
    new.mkdir()
    before = {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()}
    with pytest.raises(OutputExistsError, match="never overwrites"):
        repair_trace(trace, new)
    with pytest.raises(InputError, match="lies inside the damaged trace"):
        repair_trace(trace, trace / "new.kvtrace")
    assert kvtrace("inspect", trace, "--repair").returncode == 2
    assert kvtrace("inspect", trace, "--repair", "-o", trace.with_name("x"), "--force").returncode == 2
    shutil.rmtree(new)
    repair_trace(trace, new)
    assert {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()} == before
    assert all(path.stat().st_mode & 0o077 == 0 for path in (new, *new.rglob("*")))


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    with scratch() as folder:
        yield Fuzz(folder)


@pytest.mark.parametrize(
    ("kind", "file", "detail", "kept"),
    [
        ("flip", "rank-1.zarr/layers/29/k/c/0/0/0", "700 8", "kept some"),
        ("remove", "rank-0.zarr/rows/kv/step/c/3", "", "kept some"),  # with the last write of a position
        ("cut", "requests.jsonl", "3500", "kept some"),
        ("remove", "rank-1.zarr/rank.json", "", "kept some"),
        ("remove folder", "rank-0.zarr/layers/14", "", "kept some"),
        ("cut", "rank-0.zarr/layers/14/k/zarr.json", "5", "kept all"),
        ("remove", "rank-0.zarr/dropped.jsonl", "", "kept all"),
    ],
)
def test_every_value_of_a_repaired_real_trace_is_the_originals(
    fuzz: Fuzz, kind: str, file: str, detail: str, kept: str
) -> None:
    assert fuzz.run(Damage(kind, file, kind_of_file(file), detail))["repair"] == kept
