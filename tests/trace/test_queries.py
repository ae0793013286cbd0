"""Queries read back from a trace, and what is refused of stores that do not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from support.fabricate import bits, fabricate_trace, request
from support.fabricate_queries import add_queries

from kvtrace.errors import InputError, IntegrityError
from kvtrace.trace import queries as queries_module
from kvtrace.trace.queries import CapturedQueries
from kvtrace.trace.reader import open_trace
from kvtrace.trace.repair.repair import repair_trace
from kvtrace.trace.summary import summarize
from kvtrace.trace.summary_text import summary_text

RANDOM = np.random.default_rng(22)
LENGTH, STRIDE, HEADS, DIM = 40, 4, 4, 8
GRID = range(1, LENGTH, STRIDE)
REST = [position for position in range(LENGTH) if position not in GRID]
ASKED = [9, 21, 39]
K_AND_V = {(layer, t): RANDOM.normal(size=(2 * LENGTH, HEADS, DIM)) for layer in range(2) for t in "kv"}
Q_AND_O = {(layer, t): RANDOM.normal(size=(6, 2 * HEADS, DIM)) for layer in range(2) for t in "qo"}
"""Two query heads read each KV head. Rows: `ASKED` of request 0, then of request 1."""


def stored(values: np.ndarray) -> np.ndarray:
    """Return what bf16 keeps of values."""
    return (bits(values).astype(np.uint32) << 16).view(np.float32)


def write(path: Path, *, outputs: bool = True, context: list[int] = REST, **options: Any) -> Path:
    """Write two requests on two ranks; request 1 has values of its own at the same positions."""
    rows = [number * LENGTH + position for number in range(2) for position in GRID]
    fabricate_trace(
        path,
        {key: values[rows] for key, values in K_AND_V.items()},
        request_of_row=[row // LENGTH for row in rows],
        position_of_row=[row % LENGTH for row in rows],
        requests=[request(number, prompt_tokens=LENGTH) for number in range(2)],
        ranks=[(0, 1), (2, 3)],
        rows_per_chunk=16,
    )
    beside = [number * LENGTH + position for number in range(2) for position in context]
    add_queries(
        path,
        {key: values for key, values in Q_AND_O.items() if outputs or key[1] == "q"},
        ([0] * 3 + [1] * 3, ASKED * 2),
        {key: values[beside] for key, values in K_AND_V.items()},
        ([row // LENGTH for row in beside], [row % LENGTH for row in beside]),
        heads_a_kv_head=2,
        **options,
    )
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("queries") / "t.kvtrace")


@pytest.fixture
def trace(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "t.kvtrace"))


def test_queries_keys_and_values_of_all_ranks_come_back_bit_for_bit(sound: Path) -> None:
    opened = open_trace(sound)
    queries = CapturedQueries(opened)
    assert queries.requests == (0, 1)
    first, second = queries.read(1, [1, 0])
    assert (first.request, second.request) == (1, 0)
    assert first.query_position.tolist() == ASKED
    assert first.key_position.tolist() == list(range(LENGTH))
    assert first.is_dense
    assert (first.q == stored(Q_AND_O[1, "q"][3:])).all()
    assert first.o is not None
    assert (first.o == stored(Q_AND_O[1, "o"][3:])).all()
    assert (first.k == stored(K_AND_V[1, "k"][LENGTH:])).all()
    assert (second.v == stored(K_AND_V[1, "v"][:LENGTH])).all()
    assert first.layer.kv_head_of == (0, 0, 1, 1, 2, 2, 3, 3)


def test_what_is_kept_for_attention_counts_among_no_tokens(sound: Path) -> None:
    opened = open_trace(sound)
    assert opened.tokens.position.tolist() == [*GRID, *GRID]
    assert {block.tensor for block in opened.blocks()} == {"k", "v"}


def test_without_every_key_a_request_is_not_dense(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.kvtrace", outputs=False, context=[0, 1, 2, 3])
    (found,) = CapturedQueries(open_trace(trace)).read(0, [0])
    assert found.key_position.tolist() == [0, 1, 2, 3, *GRID[1:]]
    assert not found.is_dense
    assert found.o is None


def test_within_a_window_older_keys_need_not_be_there(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.kvtrace", context=[position for position in REST if position > 4])
    (found,) = CapturedQueries(open_trace(trace)).read(0, [0])
    assert not found.is_dense
    for window, is_dense in ((4, True), (5, True), (6, False)):  # the first query is at 9, key 4 is missing
        assert replace(found, layer=replace(found.layer, sliding_window=window)).is_dense is is_dense


def test_a_query_that_one_rank_lost_is_left_out(tmp_path: Path) -> None:
    queries = CapturedQueries(open_trace(write(tmp_path / "t.kvtrace", dropped={1: [1]})))
    first, second = queries.read(0, [0, 1])
    assert first.query_position.tolist() == [9, 39]
    assert second.query_position.tolist() == ASKED
    assert (first.q == stored(Q_AND_O[0, "q"][[0, 2]])).all()


def test_a_query_in_fp8_is_multiplied_by_its_scale(trace: Path) -> None:
    for rank in range(2):
        file = f"queries-{rank}.zarr/rank.json"
        change(trace, file, "layers.0.q_scale", [0.5])
        change(trace, file, "layers.0.attention.query_is_fp8", True)
        array = trace / f"queries-{rank}.zarr/layers/00/q/zarr.json"
        content = json.loads(array.read_text())
        content["attributes"]["kvtrace"]["stage"] = "divided_by_q_scale_in_fp8"
        array.write_text(json.dumps(content))
    (found,) = CapturedQueries(open_trace(trace)).read(0, [0])
    assert (found.q == stored(Q_AND_O[0, "q"][:3]) / 2).all()


def test_batches_hold_whole_requests_and_a_request_too_large_is_refused(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = CapturedQueries(open_trace(sound))
    assert list(queries.batches()) == [(0, 1)]
    assert list(queries.batches(most_bytes=1)) == [(0,), (1,)]
    monkeypatch.setattr(queries_module, "MAX_REQUEST_BYTES", 100)
    with pytest.raises(InputError, match=r"request 0 has 11,776 bytes of K, V and Q in one layer"):
        list(queries.batches())


def change(trace: Path, file: str, path: str, value: Any) -> None:
    """Set one field of a sealed record, its checksum made anew."""
    content = json.loads((trace / file).read_text())
    place, names = content, path.split(".")
    for name in names[:-1]:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[names[-1]] = value
    content.pop("crc32c")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["crc32c"] = f"{google_crc32c.value(canonical.encode()):08x}"
    (trace / file).unlink()
    (trace / file).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("layers.0.attention", None, "layer 0 has queries and does not say how they are used"),
        ("layers.0.attention.query_heads", [4, 5, 6, 6], "query_heads has 6 twice"),
        ("layers.0.attention.query_heads", [0, 5, 6, 7], "has query head 0, which queries-0.zarr has too"),
        ("layers.0.attention.kv_head_of", [2, 2, 3], "kv_head_of has 3 values, expected one for each of 4"),
        ("layers.0.attention.kv_head_of", [2, 2, 3, 9], "reads KV head 9, which no rank has"),
        ("layers.0.attention.softmax_scale", "NaN", "softmax_scale"),
        ("layers.0.attention.softmax_scale", 1.0, "has another softmax_scale than on another rank"),
        ("layers.0.attention.sinks", [0.0, 0.0, 0.0, "inf"], "sinks has a value that is not finite"),
        ("layers.0.attention.sinks", [0.0, 0.0, 0.0, 0.0], "has sinks on some ranks alone"),
        ("layers.0.attention.soft_cap", -1.0, "soft_cap"),
        ("layers.0.sliding_window", 0, "has a sliding_window of 0"),
        ("layers.0.sliding_window", 8, "has another sliding_window than its K and V"),
        ("layers.0.q_scale", [1.0, 1.0], "has 2 values of q_scale"),
        ("layers.0.head_dim_k", 1 << 20, "head_dim_k"),
        ("holds", "context", "is of context-1.zarr"),
        ("trace_id", "another", "belongs to"),
    ],
)
def test_a_received_store_of_queries_that_does_not_fit_is_refused_by_file_and_field(
    trace: Path, path: str, value: Any, said: str
) -> None:
    change(trace, "queries-1.zarr/rank.json", path, value)
    with pytest.raises(IntegrityError, match=r"queries-1\.zarr") as raised:
        open_trace(trace)
    assert said in str(raised.value)


@pytest.mark.parametrize("kind", ["context", "queries"])
def test_a_store_that_another_rank_has_and_this_one_lacks_is_missed(trace: Path, kind: str) -> None:
    shutil.rmtree(trace / f"{kind}-1.zarr")
    with pytest.raises(IntegrityError, match=rf"{kind}-1\.zarr: is missing, though the capture took queries"):
        open_trace(trace)


def test_context_of_other_layers_than_the_ranks_is_refused(trace: Path) -> None:
    change(trace, "context-1.zarr/rank.json", "layers.0.kv_heads", [1, 2])
    with pytest.raises(
        IntegrityError, match=r"context-1\.zarr/rank\.json: has other layers than rank-1\.zarr"
    ):
        open_trace(trace)


def test_a_flipped_byte_of_a_query_is_found_by_a_full_check(trace: Path) -> None:
    chunk = trace / "queries-1.zarr/layers/01/q/c/0/0/0"
    content = bytearray(chunk.read_bytes())
    content[40] ^= 1
    chunk.unlink()
    chunk.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"queries-1\.zarr/layers/01/q/c/0/0/0: is damaged"):
        summarize(open_trace(trace), verify=True)
    new = trace.with_name("new.kvtrace")
    repair = repair_trace(trace, new)
    (lost,) = repair.chunks
    assert (lost.rank, lost.holds, lost.layer, lost.tensor, lost.num_rows) == (1, "queries", 1, "q", 6)
    repaired = CapturedQueries(open_trace(new))
    assert repaired.read(1, [0, 1]) == []
    (found, _) = repaired.read(0, [0, 1])
    assert (found.q == stored(Q_AND_O[0, "q"][:3])).all()


def test_where_a_rank_itself_is_lost_a_repair_says_that_queries_are_left_out(trace: Path) -> None:
    (trace / "rank-1.zarr/commit.json").write_text("{}")
    repair = repair_trace(trace, trace.with_name("new.kvtrace"))
    assert repair.stores_left_out == ("context-0.zarr", "context-1.zarr", "queries-0.zarr", "queries-1.zarr")
    assert not open_trace(trace.with_name("new.kvtrace")).attention


def test_inspect_says_what_attention_can_be_replayed_from(sound: Path) -> None:
    summary = summarize(open_trace(sound))
    assert summary.queries is not None
    assert (summary.queries.num_queries, summary.queries.num_context_rows) == (6, 60)
    text = summary_text(summary)
    assert "queries   6 of 2 requests in 2 layers, each with the engine's attention output" in text
    assert "          K and V of 60 more tokens are kept for attention alone" in text


def test_a_trace_without_queries_says_nothing_of_them(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, t): np.zeros((4, 1, 4)) for t in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    opened = open_trace(path)
    assert not opened.attention
    assert "\nqueries" not in summary_text(summarize(opened))
