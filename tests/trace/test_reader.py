"""The trace reader: what it yields, what it settles, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from support.fabricate import bits, fabricate_trace, request

from kvtrace.errors import EmptyTraceError, IntegrityError, NotATraceError, SchemaVersionError
from kvtrace.trace.format import TraceRecord, seal
from kvtrace.trace.reader import Trace, open_trace
from kvtrace.trace.strata import DECODE, PREFILL

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RNG = np.random.default_rng(7)


def tensors(num_rows: int, layers: int = 2, heads: int = 2, head_dim: int = 4) -> dict:
    return {
        (layer, tensor): RNG.normal(size=(num_rows, heads, head_dim))
        for layer in range(layers)
        for tensor in ("k", "v")
    }


def collected(trace: Trace, layer: int, tensor: str) -> dict[tuple[int, int, int], NDArray]:
    """Map (request, position, global head) to the stored values."""
    found = {}
    for block in trace.blocks():
        if (block.layer.index, block.tensor) == (layer, tensor):
            for row, values in zip(block.row, block.values, strict=True):
                for head, value in zip(block.kv_heads, values, strict=True):
                    key = (int(trace.tokens.request[row]), int(trace.tokens.position[row]), head)
                    assert key not in found
                    found[key] = value
    return found


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    """Two requests over three chunks of 64 rows, the last one partial."""
    number = [row // 70 for row in range(140)]
    position = [row % 70 for row in range(140)]
    return fabricate_trace(
        tmp_path / "t.kvtrace",
        tensors(140),
        request_of_row=number,
        position_of_row=position,
        requests=[
            request(0, prompt_tokens=60, output_tokens=10),
            request(1, prompt_tokens=70, workload="code"),
        ],
    )


def test_every_stored_value_comes_back_bit_for_bit_at_its_request_and_position(tmp_path: Path) -> None:
    values = tensors(140)
    number, position = [row // 70 for row in range(140)], [row % 70 for row in range(140)]
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        values,
        request_of_row=number,
        position_of_row=position,
        requests=[request(0, prompt_tokens=70), request(1, prompt_tokens=70)],
    )
    found = collected(open_trace(path), 1, "v")
    assert len(found) == 140 * 2
    expected = bits(values[1, "v"])
    for row in range(140):
        for head in range(2):
            assert (found[number[row], position[row], head] == expected[row, head]).all()


def test_phase_and_octave_follow_position_and_prompt_length(trace_path: Path) -> None:
    tokens = open_trace(trace_path).tokens
    of_first = tokens.request == 0
    assert tokens.position[of_first].tolist() == list(range(70))
    assert tokens.phase[of_first].tolist() == [PREFILL] * 60 + [DECODE] * 10
    assert tokens.octave[of_first][[0, 1, 2, 63, 64]].tolist() == [0, 0, 1, 5, 6]


def test_plain_zarr_reads_the_arrays_that_the_writer_made(tmp_path: Path) -> None:
    values = tensors(5)
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        values,
        request_of_row=[0] * 5,
        position_of_row=range(5),
        requests=[request(0, prompt_tokens=5)],
    )
    store = zarr.open_group(path / "rank-0.zarr", mode="r")
    assert store["rows/kv/request"][:6].tolist() == [0, 0, 0, 0, 0, -1]
    assert (store["layers/01/k"][:5] == bits(values[1, "k"])).all()
    assert store["layers/01/k"].attrs["kvtrace"]["dtype"] == "bfloat16"


def test_the_last_write_of_a_position_counts(tmp_path: Path) -> None:
    values = tensors(4)
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        values,
        request_of_row=[0, 0, 0, 0],
        position_of_row=[0, 1, 0, 1],
        step_of_row=[5, 5, 6, 4],  # position 0 was written again later, position 1 came late in the file
        requests=[request(0, prompt_tokens=2)],
    )
    trace = open_trace(path)
    found = collected(trace, 0, "k")
    assert (found[0, 0, 0] == bits(values[0, "k"])[2, 0]).all()
    assert (found[0, 1, 0] == bits(values[0, "k"])[1, 0]).all()
    assert trace.joined.num_superseded == 2


def test_ranks_join_on_request_and_position_and_a_row_one_rank_lost_is_absent_there(tmp_path: Path) -> None:
    values = tensors(4, heads=4)
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        values,
        request_of_row=[0, 0, 1, 1],
        position_of_row=[0, 1, 0, 1],
        requests=[request(0, prompt_tokens=2), request(1, prompt_tokens=2)],
        ranks=[[0, 1], [2, 3]],
        rows_of_rank=[[0, 1, 2, 3], [3, 0, 2]],  # rank 1: another order, (0, 1) lost
    )
    trace = open_trace(path)
    assert len(trace.tokens) == 4
    assert trace.layers[0].kv_heads == (0, 1, 2, 3)
    found = collected(trace, 1, "k")
    assert {key[2] for key in found if key[:2] == (0, 1)} == {0, 1}
    assert (found[1, 1, 3] == bits(values[1, "k"])[3, 3]).all()


def test_rows_beyond_the_end_of_a_finished_request_and_of_unknown_requests_are_counted_not_read(
    tmp_path: Path,
) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        tensors(4),
        request_of_row=[0, 0, 0, 9],
        position_of_row=[0, 1, 2, 0],
        requests=[request(0, prompt_tokens=1, output_tokens=1)],
    )
    trace = open_trace(path)
    assert trace.tokens.position.tolist() == [0, 1]
    assert (trace.joined.num_beyond_end, trace.joined.num_unknown) == (1, 1)


def test_effective_scales_are_merged_over_ranks_by_global_head(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        tensors(2, heads=4),
        request_of_row=[0, 0],
        position_of_row=[0, 1],
        requests=[request(0, prompt_tokens=2)],
        ranks=[[2, 3], [0, 1]],
        scales={(0, "k"): (0.5, 0.25, 2.0, 4.0), (1, "v"): (0.125,)},
        kv_cache_dtype="fp8_e4m3",
    )
    trace = open_trace(path)
    assert trace.layers[0].k_scale == (0.5, 0.25, 2.0, 4.0)
    assert trace.layers[1].v_scale == (0.125,) * 4
    assert trace.cache_kind == "static_fp8"


def test_a_path_that_is_no_trace_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match=r"expected a directory with trace\.json"):
        open_trace(tmp_path)


def test_a_schema_from_the_future_is_refused_before_anything_else_is_read(trace_path: Path) -> None:
    record = json.loads((trace_path / "trace.json").read_text())
    (trace_path / "trace.json").write_text(json.dumps(record | {"schema_version": "2.0"}))
    with pytest.raises(SchemaVersionError, match=r"schema version 2\.0, this kvtrace reads 1\.x"):
        open_trace(trace_path)


def test_a_later_minor_version_with_unknown_keys_is_read(trace_path: Path) -> None:
    class LaterRecord(TraceRecord):
        new_in_1_9: str = "x"

    record = json.loads((trace_path / "trace.json").read_text())
    later = LaterRecord.model_validate(record | {"schema_version": "1.9"})
    (trace_path / "trace.json").write_text(seal(later))
    assert len(open_trace(trace_path).tokens) == 140


@pytest.mark.parametrize("name", ["trace.json", "rank-0.zarr/rank.json", "rank-0.zarr/commit.json"])
def test_a_changed_byte_in_a_record_is_found_and_its_file_named(trace_path: Path, name: str) -> None:
    content = (trace_path / name).read_bytes()
    (trace_path / name).write_bytes(content.replace(b"fabricated", b"fabricatee", 1))
    with pytest.raises(IntegrityError, match=name):
        open_trace(trace_path)


def test_a_damaged_request_line_is_named_by_number(trace_path: Path) -> None:
    lines = (trace_path / "requests.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace('"code"', '"chat"')
    (trace_path / "requests.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(IntegrityError, match=r"requests\.jsonl: line 2 is damaged"):
        open_trace(trace_path)


def test_a_last_line_cut_by_the_death_of_the_engine_is_left_out(trace_path: Path) -> None:
    with (trace_path / "requests.jsonl").open("a") as file:
        file.write('{"request": 2, "workl')
    assert sorted(open_trace(trace_path).requests) == [0, 1]


def chunk_file(trace_path: Path) -> Path:
    return trace_path / "rank-0.zarr/layers/01/v/c/1/0/0"


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip_a_byte, cut_in_half, remove])
def test_a_damaged_chunk_is_found_when_read_and_named(trace_path: Path, damage) -> None:
    damage(chunk_file(trace_path))
    trace = open_trace(trace_path)
    with pytest.raises(IntegrityError, match="layers/01/v/c/1/0/0"):
        list(trace.blocks())
    with pytest.raises(IntegrityError, match="layers/01/v/c/1/0/0"):
        trace.ranks[0].verify()


@pytest.mark.parametrize("damage", [cut_in_half, remove])
def test_a_missing_or_cut_chunk_is_found_without_rereading(trace_path: Path, damage) -> None:
    damage(chunk_file(trace_path))
    with pytest.raises(IntegrityError, match="layers/01/v/c/1/0/0"):
        open_trace(trace_path).ranks[0].check()


def test_a_sound_chunk_of_another_place_is_found_by_the_commit_digest(trace_path: Path) -> None:
    other = trace_path / "rank-0.zarr/layers/01/v/c/0/0/0"
    chunk_file(trace_path).write_bytes(other.read_bytes())
    with pytest.raises(IntegrityError, match=r"layers/01/v/c/1/0/0: is sound, but not the file"):
        open_trace(trace_path).ranks[0].check()


def test_rows_after_the_last_commit_do_not_exist(trace_path: Path) -> None:
    for array in (trace_path / "rank-0.zarr").rglob("zarr.json"):
        metadata = json.loads(array.read_text())
        if metadata["node_type"] == "array":
            metadata["shape"][0] += 64  # grown, not yet committed when the writer died
            array.write_text(json.dumps(metadata))
    assert len(open_trace(trace_path).tokens) == 140


def test_a_missing_rank_is_named(trace_path: Path) -> None:
    (trace_path / "rank-0.zarr").rename(trace_path / "elsewhere")
    with pytest.raises(IntegrityError, match=r"rank-0\.zarr missing"):
        open_trace(trace_path)


def test_a_trace_without_a_committed_row_says_so(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        tensors(1),
        request_of_row=[0],
        position_of_row=[0],
        requests=[request(0, prompt_tokens=1)],
        rows_of_rank=[[]],
    )
    with pytest.raises(EmptyTraceError, match="no committed row"):
        open_trace(path)


def test_a_trace_fits_a_line_of_a_notebook(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "small.kvtrace",
        tensors(3),
        request_of_row=[0, 0, 1],
        position_of_row=[0, 1, 0],
        requests=[request(0, prompt_tokens=2), request(1, prompt_tokens=1)],
    )
    shown = repr(open_trace(path))
    assert shown.endswith("small.kvtrace: fabricated, 2 layers, 2 requests, 3 rows>")
    assert "\n" not in shown
