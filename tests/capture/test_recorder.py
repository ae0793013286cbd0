"""The worker's side on real tensors, through the real writer into a real store."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import zarr
from kvtrace_capture.first_steps import STEPS
from kvtrace_capture.gathered_rows import HookedLayer
from kvtrace_capture.host_copy import HostCopy
from kvtrace_capture.queue_room import QueueRoom
from kvtrace_capture.recorder import StepRecorder
from kvtrace_capture.step_plan import PlannedRequest, StepPlan
from kvtrace_capture.writer import TraceWriter

from kvtrace.trace.format import DroppedRecord, LayerRecord, RankRecord, unseal

if TYPE_CHECKING:
    from pathlib import Path

HEADS, DIM, BLOCK = 2, 4, 16
NAMES = ("layers.0", "layers.1")
ROW_BYTES = len(NAMES) * 2 * HEADS * DIM * 2


class Worker:
    """A recorder over two layers, and what its store holds once it is closed."""

    def __init__(self, folder: Path, *, groups: tuple[int, int] = (0, 0), **options: Any) -> None:
        self.store = folder / "rank-0.zarr"
        records = tuple(
            LayerRecord(
                index=index,
                name=name,
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
            )
            for index, name in enumerate(NAMES)
        )
        rank = RankRecord(trace_id="t", rank=0, rows_per_chunk=64, layers=records)
        self.writer = TraceWriter(self.store, rank, room=QueueRoom(options.pop("queue_bytes", 1 << 20)))
        shape = (HEADS, DIM)
        hooked = {
            name: HookedLayer(index, groups[index], shape, shape, "bfloat16")
            for index, name in enumerate(NAMES)
        }
        self.recorder = StepRecorder(hooked, [BLOCK] * (max(groups) + 1), self.writer, **options)

    def step(self, plan: StepPlan, slots: list[int], *, names: tuple[str, ...] = NAMES, seed: int = 0) -> Any:
        """Run one step over a batch with these slots; return its K by layer."""
        generator = torch.Generator().manual_seed(seed)
        slot_mapping = torch.tensor(slots)
        self.recorder.begin(plan)
        keys = {}
        for name in names:
            key, value = (torch.randn(len(slots), HEADS, DIM, generator=generator).bfloat16() for _ in "kv")
            self.recorder.take(name, key, value, slot_mapping)
            keys[name] = key.clone()
            key.zero_()  # the engine reuses its buffers
        self.recorder.finish()
        return keys

    def rows(self) -> list[tuple[int, int]]:
        self.recorder.close()
        columns = [zarr.open_array(self.store / f"rows/kv/{c}", mode="r")[:] for c in ("request", "position")]
        return [(r, p) for r, p in zip(*(np.asarray(c).tolist() for c in columns), strict=True) if r >= 0]

    def dropped(self) -> list[tuple[int, int, str]]:
        lines = (self.store / "dropped.jsonl").read_text().splitlines()
        return [(d.request, d.num_rows, d.reason) for d in (unseal(x, DroppedRecord) for x in lines)]


def plan(*requests: tuple[int, int, int, int], may_fall_short: bool = False, **rules: Any) -> StepPlan:
    """Return a plan by request: (number, first, end, block), one block long, every position."""
    planned = tuple(
        PlannedRequest(number, 0, first, end, 1, ((first // BLOCK, (block,)),))
        for number, first, end, block in requests
    )
    return StepPlan(0, planned, may_fall_short, **rules)


def test_planned_rows_are_stored_bit_for_bit_though_the_engine_reuses_its_buffers(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    keys = worker.step(plan((3, 17, 19, 5)), [-1, 5 * BLOCK + 2, 7, 5 * BLOCK + 1])
    assert worker.rows() == [(3, 17), (3, 18)]
    stored = np.asarray(zarr.open_array(worker.store / "layers/01/k", mode="r")[:2])
    expected = keys["layers.1"][[3, 1]].view(torch.int16).numpy().view(np.uint16)
    assert (stored == expected).all()
    assert worker.dropped() == []


def test_a_step_without_a_plan_stores_nothing(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(StepPlan(0), [1, 2])
    assert worker.rows() == []


def test_a_step_that_the_engine_never_finished_is_counted(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.recorder.begin(plan((3, 17, 19, 5)))
    worker.step(plan((3, 19, 20, 5)), [5 * BLOCK + 3])
    assert worker.rows() == [(3, 19)]
    assert worker.dropped() == [(3, 2, "hook_failed")]


def test_a_cache_write_outside_any_step_is_left_alone(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    tokens = torch.zeros(3, HEADS, DIM).bfloat16()
    worker.recorder.take("layers.0", tokens, tokens, torch.tensor([1, 2, 3]))
    worker.recorder.finish()
    assert worker.rows() == []


@pytest.mark.parametrize(
    "fault", ["silent layer", "wrong dtype", "wrong shape", "written twice", "other slots"]
)
def test_a_fault_in_a_hook_is_logged_once_counted_and_never_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    worker = Worker(tmp_path)
    for _ in range(2):
        worker.recorder.begin(plan((3, 0, 2, 5)))
        slots = torch.tensor([5 * BLOCK, 5 * BLOCK + 1])
        tokens = torch.zeros(2, HEADS, DIM).bfloat16()
        worker.recorder.take("layers.0", tokens, tokens, slots)
        if fault == "wrong dtype":
            worker.recorder.take("layers.1", tokens.float(), tokens, slots)
        elif fault == "wrong shape":
            worker.recorder.take("layers.1", tokens, tokens[:, :1], slots)
        elif fault == "written twice":
            worker.recorder.take("layers.0", tokens, tokens, slots)
        elif fault == "other slots":
            worker.recorder.take("layers.1", tokens, tokens, slots.clone())
        worker.recorder.finish()
    worker.step(plan((4, 0, 1, 6)), [6 * BLOCK])
    assert worker.rows() == [(4, 0)]
    assert worker.dropped() == [(3, 4, "hook_failed")]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


def test_a_layer_that_never_comes_through_its_hook_ends_capture_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a model writes the cache itself: its attention is called without K and V."""
    worker = Worker(tmp_path)
    for _ in range(STEPS):
        worker.step(plan((3, 0, 2, 5)), [5 * BLOCK, 5 * BLOCK + 1], names=("layers.0",))
    worker.step(plan((4, 0, 1, 6)), [6 * BLOCK])
    assert worker.rows() == []
    assert worker.dropped() == [(3, 2 * STEPS, "hook_failed"), (4, 1, "hook_failed")]
    stopped = [message for message in caplog.messages if "capture is stopped, serving goes on" in message]
    assert len(stopped) == 1
    assert (
        f"in {STEPS} steps the hook of layer layers.1 saw no token: the model writes the cache" in stopped[0]
    )


def test_a_layer_that_came_through_its_hook_once_ends_no_capture_by_being_silent_later(
    tmp_path: Path,
) -> None:
    worker = Worker(tmp_path)
    worker.step(plan((3, 0, 1, 5)), [5 * BLOCK])
    for _ in range(2 * STEPS):
        worker.step(plan((4, 0, 1, 6)), [6 * BLOCK], names=("layers.0",))
    worker.step(plan((5, 0, 1, 7)), [7 * BLOCK])
    assert worker.rows() == [(3, 0), (5, 0)]
    assert worker.dropped() == [(4, 2 * STEPS, "hook_failed")]


@pytest.mark.parametrize("failing", ["is_done", "wait"])
def test_a_device_that_fails_while_rows_are_copied_is_logged_once_and_never_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    def fail(_: HostCopy[tuple[str, int]]) -> bool:
        raise RuntimeError("device-side assert")

    worker = Worker(tmp_path)
    monkeypatch.setattr(HostCopy, "is_done", lambda _: False)
    monkeypatch.setattr(HostCopy, failing, fail)
    for number in range(3):
        worker.step(plan((number, 0, 2, 5)), [5 * BLOCK, 5 * BLOCK + 1])
    worker.recorder.flush()
    monkeypatch.undo()
    worker.step(plan((4, 0, 1, 6)), [6 * BLOCK])
    assert worker.rows() == [(4, 0)]
    assert worker.dropped() == [(number, 2, "hook_failed") for number in range(3)]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


def test_planned_tokens_that_are_not_in_the_batch_are_counted(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(plan((3, 0, 4, 5)), [5 * BLOCK + 1, 5 * BLOCK + 2])
    assert worker.rows() == [(3, 1), (3, 2)]
    assert worker.dropped() == [(3, 2, "hook_failed")]


def test_with_speculative_decoding_a_plan_may_rightly_fall_short(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(plan((3, 0, 4, 5), may_fall_short=True), [5 * BLOCK + 1, 5 * BLOCK + 2])
    assert worker.rows() == [(3, 1), (3, 2)]
    assert worker.dropped() == []


def test_layers_of_two_groups_are_found_by_the_slots_of_each(tmp_path: Path) -> None:
    worker = Worker(tmp_path, groups=(0, 1))
    request = PlannedRequest(3, 0, 0, 2, 1, ((0, (5,)), (0, (9,))))
    worker.recorder.begin(StepPlan(0, (request,)))
    key = torch.arange(2 * HEADS * DIM).reshape(2, HEADS, DIM).bfloat16()
    worker.recorder.take("layers.0", key, key, torch.tensor([5 * BLOCK, 5 * BLOCK + 1]))
    worker.recorder.take("layers.1", key.flip(0), key, torch.tensor([9 * BLOCK + 1, 9 * BLOCK]))
    worker.recorder.finish()
    assert worker.rows() == [(3, 0), (3, 1)]
    first, second = (zarr.open_array(worker.store / f"layers/0{n}/k", mode="r")[:2] for n in (0, 1))
    assert (np.asarray(first) == np.asarray(second)).all()


def test_once_the_byte_budget_is_spent_no_smaller_step_slips_in_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budget: Any = {"byte_budget": 4 * ROW_BYTES}
    worker = Worker(tmp_path)
    worker.step(plan((0, 0, 3, 5), **budget), [5 * BLOCK + n for n in range(3)])
    worker.step(plan((1, 0, 2, 6), **budget), [6 * BLOCK, 6 * BLOCK + 1])
    worker.step(plan((2, 0, 1, 7), **budget), [7 * BLOCK])
    assert worker.rows() == [(0, 0), (0, 1), (0, 2)]
    assert worker.dropped() == [(1, 2, "budget"), (2, 1, "budget")]
    assert caplog.messages == ["kvtrace: the byte_budget of sampling 0 is spent; rows are dropped"]


def test_new_rules_bring_a_new_byte_budget(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(plan((0, 0, 2, 5), byte_budget=ROW_BYTES), [5 * BLOCK, 5 * BLOCK + 1])
    worker.step(plan((1, 0, 1, 6), byte_budget=ROW_BYTES, sampling_id=1), [6 * BLOCK])
    worker.step(plan((2, 0, 1, 7), byte_budget=ROW_BYTES, sampling_id=1), [7 * BLOCK])
    worker.step(plan((3, 0, 1, 8), sampling_id=2), [8 * BLOCK])
    assert worker.rows() == [(1, 0), (3, 0)]
    assert worker.dropped() == [(0, 2, "budget"), (2, 1, "budget")]


def test_a_step_that_never_fits_the_queue_is_counted_and_the_log_says_once_what_to_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(tmp_path, queue_bytes=ROW_BYTES)
    for _ in range(2):
        worker.step(plan((0, 0, 3, 5)), [5 * BLOCK + n for n in range(3)])
    assert worker.rows() == []
    assert worker.dropped() == [(0, 6, "queue_full")]
    (message,) = caplog.messages
    assert (
        f"take {3 * ROW_BYTES} bytes, and queue_bytes is {ROW_BYTES}; raise it or position_stride" in message
    )


def test_the_time_spent_in_the_hook_is_recorded(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.step(plan((0, 0, 3, 5)), [5 * BLOCK + n for n in range(3)])
    assert worker.rows()
    cost = json.loads((worker.store / "commit.json").read_text())["cost"]
    assert 0 < cost["hook_s"] < 5
