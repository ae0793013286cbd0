"""The worker's side on real CUDA tensors: bit for bit, and without a wait for the device."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import zarr
from kvtrace_capture.gathered_rows import HookedLayer
from kvtrace_capture.recorder import StepRecorder
from kvtrace_capture.step_plan import PlannedRequest, StepPlan
from kvtrace_capture.writer import TraceWriter

from kvtrace.trace.format import LayerRecord, RankRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYERS, HEADS, DIM, BLOCK, TOKENS, STEPS = 4, 8, 128, 16, 512, 12


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Let every operation that waits for the device raise."""
    cuda: Any = torch.cuda
    cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        cuda.set_sync_debug_mode("default")


def record(index: int) -> LayerRecord:
    return LayerRecord(
        index=index,
        name=f"layers.{index}",
        kv_heads=tuple(range(HEADS)),
        head_dim_k=DIM,
        head_dim_v=DIM,
        dtype="bfloat16",
        backend="FLASH_ATTN",
        implementation="x",
        kv_cache_dtype="auto",
        block_size=BLOCK,
        k_scale=(1.0,),
        v_scale=(1.0,),
    )


def run_steps(store: Path, device: str, during: Any = nullcontext) -> list[torch.Tensor]:
    """Capture every third token of some steps; return what K of layer 1 was on the device, by step."""
    records = tuple(record(index) for index in range(LAYERS))
    rank = RankRecord(trace_id="t", rank=0, rows_per_chunk=64, layers=records)
    shape = (HEADS, DIM)
    hooked = {layer.name: HookedLayer(layer.index, 0, shape, shape, "bfloat16") for layer in records}
    recorder = StepRecorder(hooked, [BLOCK], TraceWriter(store, rank))
    blocks = tuple(range(TOKENS // BLOCK))
    plan = PlannedRequest(0, 0, 0, TOKENS, 3, ((0, blocks),))
    slots = torch.arange(TOKENS, device=device).flip(0)
    kept = []
    for step in range(STEPS):
        with during():
            recorder.begin(StepPlan(step, (plan,)))
            for layer in records:
                key = torch.randn(TOKENS, HEADS, DIM, device=device, dtype=torch.bfloat16)
                value = torch.randn_like(key)
                if layer.index == 1:
                    kept.append(key.clone())
                recorder.take(layer.name, key, value, slots)
                key.zero_()  # the engine reuses its buffers
                value.zero_()
            recorder.finish()
    recorder.close()
    return kept


def check_stored(store: Path, keys: list[torch.Tensor]) -> None:
    stored = np.asarray(zarr.open_array(store / "layers/01/k", mode="r")[:])
    step = np.asarray(zarr.open_array(store / "rows/kv/step", mode="r")[:])
    used = np.asarray(zarr.open_array(store / "rows/kv/request", mode="r")[:]) >= 0
    for number, key in enumerate(keys):
        expected = key.cpu().flip(0)[::3].view(torch.int16).numpy().view(np.uint16)
        assert (stored[used & (step == number)] == expected).all()


def test_steps_are_stored_bit_for_bit_on_the_cpu(tmp_path: Path) -> None:
    check_stored(tmp_path / "rank-0.zarr", run_steps(tmp_path / "rank-0.zarr", "cpu"))


@pytest.mark.gpu
def test_steps_are_stored_bit_for_bit_from_a_gpu(tmp_path: Path) -> None:
    check_stored(tmp_path / "rank-0.zarr", run_steps(tmp_path / "rank-0.zarr", "cuda"))


@pytest.mark.gpu
def test_no_step_waits_for_the_gpu(tmp_path: Path) -> None:
    run_steps(tmp_path / "rank-0.zarr", "cuda", during=waiting_is_an_error)
    assert (tmp_path / "rank-0.zarr" / "dropped.jsonl").read_text() == ""


@pytest.mark.gpu
def test_the_engines_stream_goes_on_while_rows_are_copied(tmp_path: Path) -> None:
    from kvtrace_capture.host_copy import HostCopy

    cuda: Any = torch.cuda
    large = torch.ones(1 << 28, dtype=torch.bfloat16, device="cuda")
    HostCopy({0: large}).wait()  # pinned memory is allocated once
    engine_is_done = cuda.Event()
    copy = HostCopy({0: large})
    torch.ones(8, device="cuda").add_(1)
    engine_is_done.record()
    engine_is_done.synchronize()
    assert not copy.is_done()
    copy.wait()
    assert bool((copy.tensors[0][-8:] == 1).all())
