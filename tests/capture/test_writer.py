"""The writer: what it commits, what it refuses, and what survives its death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from kvtrace_capture.queue_room import QueueRoom
from kvtrace_capture.store_files import StoreFiles
from kvtrace_capture.writer import StepRows, TraceWriter, rows_per_chunk
from support.fabricate import bits, fabricate_trace, request

from kvtrace.trace.format import DroppedRecord, LayerRecord, RankRecord
from kvtrace.trace.reader import open_trace
from kvtrace.trace.requests import read_dropped
from kvtrace.trace.store import open_store

TESTS = Path(__file__).parents[1]


def layer(index: int, *, heads: int = 2, head_dim: int = 4, captured: bool = True) -> LayerRecord:
    return LayerRecord(
        index=index,
        name=f"layers.{index}",
        captured=captured,
        kv_heads=tuple(range(heads)),
        head_dim_k=head_dim,
        head_dim_v=head_dim,
        dtype="bfloat16",
        backend="NONE",
        implementation="none",
        kv_cache_dtype="auto",
        block_size=16,
        k_scale=(1.0,),
        v_scale=(1.0,),
    )


def rank(*layers: LayerRecord, rows: int = 64) -> RankRecord:
    return RankRecord(trace_id="t", rank=0, rows_per_chunk=rows, layers=layers)


def step(number: int, positions: range, layers: tuple[int, ...] = (0,)) -> StepRows:
    """Rows whose every value is their position."""
    values = np.broadcast_to(np.array(positions, dtype=np.float64)[:, None, None], (len(positions), 2, 4))
    return StepRows(
        request=np.zeros(len(positions), dtype=np.int32),
        position=np.array(positions, dtype=np.int32),
        sampling_id=np.zeros(len(positions), dtype=np.int32),
        step=number,
        tensors={(index, tensor): bits(values) for index in layers for tensor in ("k", "v")},
    )


def test_a_partial_chunk_is_sealed_on_close_and_its_unused_rows_marked(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)))
    writer.append(step(0, range(100)))
    writer.close()
    store = open_store(tmp_path / "rank-0.zarr")
    assert [chunk.num_rows for chunk in store.commit.chunks] == [64, 36]
    assert store.rows["request"].tolist() == [0] * 100 + [-1] * 28
    assert store.commit.closed


def test_rows_are_committed_after_the_flush_interval_without_a_full_chunk(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)), flush_seconds=0.05)
    writer.append(step(0, range(3)))
    deadline = time.monotonic() + 20
    while not (commit := open_store(tmp_path / "rank-0.zarr").commit).chunks:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [chunk.num_rows for chunk in commit.chunks] == [3]
    assert not commit.closed
    writer.append(step(1, range(3, 5)))
    writer.close()
    store = open_store(tmp_path / "rank-0.zarr")
    assert store.rows["position"][store.rows["request"] >= 0].tolist() == [0, 1, 2, 3, 4]


def test_rows_that_come_while_a_chunk_is_committed_are_stored_by_a_close_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)), flush_seconds=0.05)
    append_chunk, is_committed, may_go_on = StoreFiles.append_chunk, threading.Event(), threading.Event()

    def append_and_pause(self: StoreFiles, buffer, num_rows: int) -> None:
        append_chunk(self, buffer, num_rows)
        is_committed.set()
        assert may_go_on.wait(20)

    monkeypatch.setattr(StoreFiles, "append_chunk", append_and_pause)
    writer.append(step(0, range(3)))
    assert is_committed.wait(20)
    assert writer.append(step(1, range(3, 5)))
    closing = threading.Thread(target=writer.close)
    closing.start()
    while writer.has_room(0):  # until it closes
        time.sleep(0.001)
    may_go_on.set()
    closing.join()
    store = open_store(tmp_path / "rank-0.zarr")
    assert [chunk.num_rows for chunk in store.commit.chunks] == [3, 2]
    assert store.rows["position"][store.rows["request"] >= 0].tolist() == [0, 1, 2, 3, 4]
    assert store.commit.closed


def test_a_layer_that_is_not_captured_has_no_arrays(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0), layer(1, captured=False)))
    writer.append(step(0, range(3)))
    writer.close()
    assert not (tmp_path / "rank-0.zarr/layers/01").exists()
    assert [spec.path for _, _, spec in open_store(tmp_path / "rank-0.zarr").tensor_specs()] == [
        "layers/00/k",
        "layers/00/v",
    ]


def test_a_full_queue_refuses_and_never_blocks(tmp_path: Path) -> None:
    rows = step(0, range(64))
    writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)), room=QueueRoom(rows.num_bytes - 1))
    assert not writer.append(rows)
    writer.drop(DroppedRecord(request=0, num_rows=64, reason="queue_full"))
    writer.close()
    assert read_dropped(tmp_path / "rank-0.zarr") == {0: {"queue_full": 64}}


def test_an_existing_store_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "rank-0.zarr").mkdir()
    with pytest.raises(FileExistsError):
        TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)))


def test_a_write_fault_stops_capture_counts_the_loss_and_keeps_what_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.zarr"
    writer = TraceWriter(path, rank(layer(0)), flush_seconds=3600)
    writer.append(step(0, range(64)))
    deadline = time.monotonic() + 20
    while not open_store(path).commit.chunks:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (path / "layers/00/v/c").rename(path / "layers/00/v/elsewhere")
    (path / "layers/00/v/c").write_text("a file where the writer needs a directory")
    writer.append(step(1, range(64, 130)))
    writer.close()
    (path / "layers/00/v/c").unlink()
    (path / "layers/00/v/elsewhere").rename(path / "layers/00/v/c")
    assert writer.failure
    assert not writer.append(step(2, range(1)))
    store = open_store(path)
    assert [chunk.num_rows for chunk in store.commit.chunks] == [64]
    assert store.dropped == {0: {"write_failed": 66}}
    assert not store.commit.closed
    store.verify()


def test_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)))
    writer.append(step(0, range(3)))
    writer.close()
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "rank-0.zarr").rglob("*")}
    assert modes == {0}


def test_the_writers_thread_leaves_the_core_its_engine_was_pinned_to(tmp_path: Path) -> None:
    pinned = {min(os.sched_getaffinity(0))}
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        pytest.skip("one core")
    os.sched_setaffinity(0, pinned)
    try:
        writer = TraceWriter(tmp_path / "rank-0.zarr", rank(layer(0)))
        writer.append(step(0, range(3)))
        thread = next(t for t in threading.enumerate() if t.name == "kvtrace-writer")
        deadline = time.monotonic() + 20
        while os.sched_getaffinity(thread.native_id or 0) != everywhere:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        writer.close()
    finally:
        os.sched_setaffinity(0, everywhere)


def test_the_writers_thread_stays_on_the_cores_that_the_operator_gave_the_engine() -> None:
    some = sorted(os.sched_getaffinity(0))[:2]
    if (os.cpu_count() or 1) <= len(some):
        pytest.skip("no core to stay away from")
    code = (
        "import os, threading\n"
        "from kvtrace_capture.affinity import leave_the_engines_core\n"
        f"os.sched_setaffinity(0, {some})\n"
        "def run():\n"
        "    leave_the_engines_core()\n"
        "    print(sorted(os.sched_getaffinity(0)))\n"
        "threading.Thread(target=run).start()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(some)


@pytest.mark.parametrize(
    ("heads", "head_dim", "layers", "expected"),
    [
        (3, 64, 30, 4096),  # SmolLM2-135M: 23,040 bytes a row
        (8, 128, 80, 256),  # 327,680 bytes a row: 128 MiB hold 409 rows
        (512, 512, 200, 64),  # never below 64 rows
    ],
)
def test_chunk_rows_keep_the_buffer_within_128_mib(
    heads: int, head_dim: int, layers: int, expected: int
) -> None:
    of_layers = rank(*(layer(i, heads=heads, head_dim=head_dim) for i in range(layers)))
    assert rows_per_chunk(of_layers) == expected


WRITE_FOREVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_writer import layer, rank, step
from kvtrace_capture.store_files import StoreFiles
from kvtrace_capture.writer import TraceWriter
writer = TraceWriter(Path(sys.argv[1]), rank(layer(0)), flush_seconds=0.01)
print("ready", flush=True)
position = 0
while True:
    if writer.append(step(position, range(position, position + 7))):
        position += 7
"""


def num_committed(path: Path) -> int:
    return sum(chunk.num_rows for chunk in open_store(path).commit.chunks)


@pytest.mark.parametrize("num_acknowledged", [1, 70, 700])
def test_after_kill_9_every_committed_row_is_there_bit_for_bit(tmp_path: Path, num_acknowledged: int) -> None:
    path = tmp_path / "rank-0.zarr"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER, str(path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 120
    while (acknowledged := num_committed(path)) < num_acknowledged:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    store = open_store(path)
    store.verify()
    assert not store.commit.closed
    used = store.rows["request"] >= 0
    positions = store.rows["position"][used]
    assert len(positions) >= acknowledged
    assert positions.tolist() == list(range(len(positions)))
    for _, _, spec in store.tensor_specs():
        stored = np.concatenate([store.read_chunk(spec, chunk) for chunk in range(store.num_chunks)])[used]
        assert (stored == bits(np.broadcast_to(positions[:, None, None], stored.shape))).all()


def test_a_fabricated_trace_is_a_real_one(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, "k"): np.ones((2, 1, 4)), (0, "v"): np.zeros((2, 1, 4))},
        request_of_row=[0, 0],
        position_of_row=[0, 1],
        requests=[request(0, prompt_tokens=2)],
    )
    assert len(open_trace(path).tokens) == 2
