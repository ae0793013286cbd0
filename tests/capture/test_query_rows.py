"""Queries through the recorder into their stores: which rows, bit for bit, and what a fault costs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import zarr
from kvtrace_capture.gathered_rows import HookedLayer, QueryLayer
from kvtrace_capture.rank_stores import make_recorder
from kvtrace_capture.settings import CaptureSettings
from kvtrace_capture.step_plan import PlannedRequest, StepPlan

from kvtrace.trace.attention_format import AttentionRecord
from kvtrace.trace.format import DroppedRecord, LayerRecord, RankRecord, unseal
from kvtrace.trace.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

HEADS, QUERY_HEADS, DIM, BLOCK = 2, 4, 4, 16
NAMES = ("layers.0", "layers.1")
KV_BYTES = len(NAMES) * 2 * HEADS * DIM * 2
Q_BYTES = len(NAMES) * 2 * QUERY_HEADS * DIM * 2


@dataclass(frozen=True)
class Found:
    """What the hooks know of a layer."""

    record: LayerRecord
    hooked: HookedLayer | None
    queries: QueryLayer | None


class Worker:
    """A recorder over two layers with queries and outputs, and what its stores hold once it is closed."""

    def __init__(self, folder: Path, *, is_fp8: bool = False, owns_kv: bool = True, **settings: Any) -> None:
        self.folder = folder
        attention = AttentionRecord(
            query_heads=(0, 1, 2, 3), kv_head_of=(0, 0, 1, 1), softmax_scale=0.5, query_is_fp8=is_fp8
        )
        layers = [
            Found(
                LayerRecord(
                    index=index,
                    name=name,
                    captured=owns_kv,
                    kv_heads=(0, 1),
                    head_dim_k=DIM,
                    head_dim_v=DIM,
                    dtype="bfloat16",
                    backend="CPU_ATTN",
                    implementation="x",
                    kv_cache_dtype="auto",
                    block_size=BLOCK,
                    k_scale=(1.0,),
                    v_scale=(1.0,),
                    attention=attention,
                ),
                HookedLayer(index, 0, (HEADS, DIM), (HEADS, DIM), "bfloat16") if owns_kv else None,
                QueryLayer(index, 0, (QUERY_HEADS, DIM), (QUERY_HEADS, DIM), "bfloat16", is_fp8=is_fp8),
            )
            for index, name in enumerate(NAMES)
        ]
        rank = RankRecord(trace_id="t", rank=0, rows_per_chunk=1, layers=tuple(x.record for x in layers))
        self.recorder = make_recorder(
            folder, rank, layers, [BLOCK], CaptureSettings(folder, queries="probe", **settings)
        )

    def step(self, plan: StepPlan, slots: list[int], *, seed: int = 0, fault: str = "") -> dict[str, Any]:
        """Run one step over a batch with these slots; return each layer's K, Q and output."""
        generator = torch.Generator().manual_seed(seed)
        slot_mapping = torch.tensor(slots)
        self.recorder.begin(plan)
        seen: dict[str, Any] = {}
        for name in NAMES:
            key, value = (torch.randn(len(slots), HEADS, DIM, generator=generator).bfloat16() for _ in "kv")
            query, output = (
                torch.randn(len(slots), QUERY_HEADS, DIM, generator=generator).bfloat16() for _ in "qo"
            )
            seen[name] = {"k": key.clone(), "q": query.clone(), "o": output.clone()}
            if fault == "query before the cache write" and name == NAMES[0]:
                self.recorder.take_query(name, "q", query)
            self.recorder.take(name, key, value, slot_mapping)
            if fault == "silent layer" and name == NAMES[1]:
                continue
            wrong = query.float() if fault == "wrong dtype" else query[:, :1]
            self.recorder.take_query(name, "q", wrong if fault.startswith("wrong") else query)
            self.recorder.take_query(name, "o", output)
            for values in (key, query, output):
                values.zero_()  # the engine reuses its buffers
        self.recorder.finish()
        return seen

    def rows(self) -> dict[str, list[tuple[int, int]]]:
        """Close the stores and return (request, position) of every row by store."""
        self.recorder.close()
        found = {}
        for kind in ("rank", "context", "queries"):
            if (self.folder / f"{kind}-0.zarr").exists():
                rows = open_store(self.folder / f"{kind}-0.zarr").rows
                used = rows["request"] >= 0
                columns = (rows[name][used].tolist() for name in ("request", "position"))
                found[kind] = list(zip(*columns, strict=True))
        return found

    def dropped(self, kind: str) -> list[tuple[int, int, str]]:
        lines = (self.folder / f"{kind}-0.zarr" / "dropped.jsonl").read_text().splitlines()
        return [(d.request, d.num_rows, d.reason) for d in (unseal(x, DroppedRecord) for x in lines)]

    def values(self, kind: str, array: str, count: int) -> torch.Tensor:
        bits = np.asarray(zarr.open_array(self.folder / f"{kind}-0.zarr" / array, mode="r")[:count])
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def plan(*queries: int, end: int = 6, **rules: Any) -> StepPlan:
    """Return a plan for positions 0 to `end` of request 3 in block 5: every 4th sampled from 1, all kept."""
    return StepPlan(0, (PlannedRequest(3, 0, 1, end, 4, ((0, (5,)),), (0, end), queries),), **rules)


SLOTS = [5 * BLOCK + position for position in (4, 2, 0, 1, 3, 5)]
ROW_OF = {4: 0, 2: 1, 0: 2, 1: 3, 3: 4, 5: 5}


def test_each_store_gets_its_rows_bit_for_bit_though_the_engine_reuses_its_buffers(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    seen = worker.step(plan(2, 5), SLOTS)
    rows = worker.rows()
    assert rows["rank"] == [(3, 1), (3, 5)]
    assert rows["context"] == [(3, 0), (3, 2), (3, 3), (3, 4)]
    assert rows["queries"] == [(3, 2), (3, 5)]
    for number, name in enumerate(NAMES):
        for tensor in "qo":
            found = worker.values("queries", f"layers/0{number}/{tensor}", 2)
            assert torch.equal(found, seen[name][tensor][[ROW_OF[2], ROW_OF[5]]])
        found = worker.values("context", f"layers/0{number}/k", 4)
        assert torch.equal(found, seen[name]["k"][[ROW_OF[position] for position in (0, 2, 3, 4)]])
    assert [worker.dropped(kind) for kind in rows] == [[], [], []]


def test_a_step_without_a_query_stores_none(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(plan(), SLOTS)
    assert worker.rows()["queries"] == []
    assert worker.dropped("queries") == []


@pytest.mark.parametrize(
    "fault", ["silent layer", "wrong dtype", "wrong shape", "query before the cache write"]
)
def test_a_fault_with_queries_costs_the_queries_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    worker = Worker(tmp_path)
    worker.step(plan(2, 5), SLOTS, fault=fault)
    worker.step(plan(2, 5), SLOTS, fault=fault)
    worker.step(plan(3), SLOTS)
    rows = worker.rows()
    assert len(rows["rank"]) == 3 * 2
    assert len(rows["context"]) == 3 * 4
    assert rows["queries"] == [(3, 3)]
    assert worker.dropped("queries") == [(3, 4, "hook_failed")]
    (logged,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert logged.startswith("kvtrace: queries are lost, serving and the capture of K and V go on")


def test_a_fault_with_k_and_v_counts_in_every_store(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.recorder.begin(plan(2, 5))
    worker.recorder.take("layers.0", torch.zeros(6, 1, 1), torch.zeros(6, 1, 1), torch.tensor(SLOTS))
    worker.recorder.finish()
    assert worker.rows() == {"rank": [], "context": [], "queries": []}
    assert worker.dropped("rank") == [(3, 2, "hook_failed")]
    assert worker.dropped("context") == [(3, 4, "hook_failed")]
    assert worker.dropped("queries") == [(3, 2, "hook_failed")]


def test_planned_tokens_that_are_not_in_the_batch_count_where_they_would_have_gone(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(plan(2, 5), SLOTS[:3])  # positions 4, 2 and 0
    assert worker.rows() == {"rank": [], "context": [(3, 0), (3, 2), (3, 4)], "queries": [(3, 2)]}
    assert worker.dropped("rank") == [(3, 2, "hook_failed")]
    assert worker.dropped("context") == [(3, 1, "hook_failed")]
    assert worker.dropped("queries") == [(3, 1, "hook_failed")]


def test_queries_and_what_is_kept_for_them_count_against_the_byte_budget(tmp_path: Path) -> None:
    needed = 6 * KV_BYTES + 2 * Q_BYTES
    worker = Worker(tmp_path)
    worker.step(plan(2, 5, byte_budget=needed), SLOTS)
    worker.step(plan(end=1, byte_budget=needed), SLOTS)
    worker.step(plan(2, 5, byte_budget=needed - 1, sampling_id=1), SLOTS)
    assert [len(rows) for rows in worker.rows().values()] == [2, 4, 2]
    assert worker.dropped("rank") == [(3, 2, "budget")]
    assert worker.dropped("context") == [(3, 5, "budget")]
    assert worker.dropped("queries") == [(3, 2, "budget")]


def test_all_stores_of_a_rank_share_the_room_for_rows_that_wait(tmp_path: Path) -> None:
    worker = Worker(tmp_path, queue_bytes=6 * KV_BYTES + 2 * Q_BYTES - 1)
    worker.step(plan(2, 5), SLOTS)
    assert worker.rows() == {"rank": [], "context": [], "queries": []}
    assert worker.dropped("queries") == [(3, 2, "queue_full")]


def test_a_rank_whose_kv_heads_another_one_stores_keeps_its_queries_alone(tmp_path: Path) -> None:
    worker = Worker(tmp_path, owns_kv=False)
    seen = worker.step(plan(2, 5), SLOTS)
    assert worker.rows() == {"rank": [], "queries": [(3, 2), (3, 5)]}
    assert torch.equal(worker.values("queries", "layers/01/q", 1), seen["layers.1"]["q"][[ROW_OF[2]]])
    assert worker.dropped("rank") == []


def test_queries_that_come_in_fp8_are_stored_exactly(tmp_path: Path) -> None:
    worker = Worker(tmp_path, is_fp8=True)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    values = torch.where(every.float().isnan(), 0.0, every.float()).to(torch.float8_e4m3fn)
    query = values.repeat(2)[: 6 * QUERY_HEADS * DIM].reshape(6, QUERY_HEADS, DIM)
    assert torch.equal(values.to(torch.bfloat16).float(), values.float())
    worker.recorder.begin(plan(*range(6)))
    slot_mapping = torch.tensor(SLOTS)
    for name in NAMES:
        zeros = torch.zeros(6, HEADS, DIM).bfloat16()
        worker.recorder.take(name, zeros, zeros, slot_mapping)
        worker.recorder.take_query(name, "q", query)
        worker.recorder.take_query(name, "o", torch.zeros(6, QUERY_HEADS, DIM).bfloat16())
    worker.recorder.finish()
    assert len(worker.rows()["queries"]) == 6
    found = worker.values("queries", "layers/00/q", 6).float()
    assert torch.equal(found, query.float()[[ROW_OF[position] for position in range(6)]])
    stage = zarr.open_array(tmp_path / "queries-0.zarr/layers/00/q", mode="r").attrs["kvtrace"]["stage"]
    assert stage == "divided_by_q_scale_in_fp8"


def test_what_attention_adds_is_measured_at_the_captured_queries_alone(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.recorder.begin(plan(2, 5))
    slots = torch.tensor(SLOTS)
    added = torch.tensor([[3.0, 4.0]] * len(SLOTS)).bfloat16()
    before = torch.tensor([[0.0, 6.0]] * len(SLOTS)).bfloat16()
    for name in NAMES:
        key = torch.zeros(len(SLOTS), HEADS, DIM).bfloat16()
        worker.recorder.take(name, key, key, slots)
        query = torch.zeros(len(SLOTS), QUERY_HEADS, DIM).bfloat16()
        worker.recorder.take_query(name, "q", query)
        worker.recorder.take_query(name, "o", query)
        if name == NAMES[0]:
            worker.recorder.take_residual(name, added, before)
    worker.recorder.finish()
    worker.recorder.close()
    (one,) = open_store(tmp_path / "queries-0.zarr").commit.residual
    # ‖(3, 4)‖² / ‖(3, 10)‖² at each query; layer 1 was not watched and is absent.
    assert (one.layer, one.num_queries) == (0, 2)
    assert one.sum_ratio == pytest.approx(2 * 25 / 109)
