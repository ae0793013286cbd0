"""The self-check over the real recorder: it counts every layer's writes against the scheduled tokens."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from kvtrace_capture.gathered_rows import HookedLayer
from kvtrace_capture.recorder import StepRecorder
from kvtrace_capture.self_check import CheckedRecorder
from kvtrace_capture.step_plan import PlannedRequest, StepPlan
from kvtrace_capture.vllm_versions import TRIED, is_tried
from kvtrace_capture.writer import TraceWriter

from kvtrace.capture.vllm_python import OLDEST_VLLM
from kvtrace.trace.format import LayerRecord, RankRecord

NAMES = ("layers.0", "layers.1")
BLOCK = 16


class Engine:
    """A checked recorder over two layers of one head, fed as an engine feeds it."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.store = folder / "rank-0.zarr"
        layers = tuple(
            LayerRecord(
                index=index, name=name, kv_heads=(0,), head_dim_k=4, head_dim_v=4, dtype="bfloat16",
                backend="X", implementation="x", kv_cache_dtype="auto", block_size=BLOCK,
                k_scale=(1.0,), v_scale=(1.0,),
            )
            for index, name in enumerate(NAMES)
        )  # fmt: skip
        writer = TraceWriter(self.store, RankRecord(trace_id="t", rank=0, rows_per_chunk=64, layers=layers))
        hooked = {name: HookedLayer(n, 0, (1, 4), (1, 4), "bfloat16") for n, name in enumerate(NAMES)}
        self.recorder = CheckedRecorder(
            StepRecorder(hooked, [BLOCK], writer), hooked, "vLLM 9.9 on tpu", steps
        )
        self.position = 0

    def step(
        self, slots: list[int], *, num_tokens: int, names: tuple[str, ...] = NAMES, drafts: bool = False
    ) -> None:
        """Sample the first scheduled token, if any; every named layer writes these slots."""
        planned = (PlannedRequest(7, 0, self.position, self.position + 1, 1, ((0, (0,)),)),)
        self.recorder.begin(
            StepPlan(
                self.position, planned if num_tokens else (), num_tokens=num_tokens, may_fall_short=drafts
            )
        )
        mapping = torch.tensor(slots)
        for name in names:
            tokens = torch.zeros(len(slots), 1, 4).bfloat16()
            self.recorder.take(name, tokens, tokens, mapping)
        self.recorder.finish()
        self.position += 1

    def end(self) -> tuple[int, int]:
        """Return how many rows were stored and how many were counted as dropped."""
        self.recorder.close()
        stored = np.asarray(zarr.open_array(self.store / "rows/kv/request", mode="r")[:])
        dropped = (self.store / "dropped.jsonl").read_text().splitlines()
        return int((stored >= 0).sum()), sum(json.loads(line)["num_rows"] for line in dropped)


def test_right_counts_pass_with_one_warning_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path, steps=2)
    engine.step([0, 40, -1], num_tokens=2)  # −1: padding of a captured graph
    engine.step([], num_tokens=0)  # nothing was scheduled: it tells nothing
    assert not caplog.records
    engine.step([2], num_tokens=1)
    engine.step([3, -1], num_tokens=2)  # after the check nothing is counted any more
    assert engine.end() == (3, 0)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "never tried with vLLM 9.9 on tpu" in warning.getMessage()
    assert "each of 2 layers wrote all 3 tokens of 2 steps" in warning.getMessage()


@pytest.mark.parametrize(
    ("slots", "names", "expected"),
    [
        ([0, 40], ("layers.0",), "layer layers.1 saw 0 of 2"),
        ([0], NAMES, "layer layers.0 saw 1 of 2 scheduled tokens, and 1 more layers are wrong"),
        ([0, 40], ("layers.0", "layers.1", "layers.1"), "layer layers.1 saw 4 of 2"),
    ],
)
def test_a_wrong_count_stops_capture_names_the_layer_and_counts_every_row_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, slots: list[int], names: tuple[str, ...], expected: str
) -> None:
    engine = Engine(tmp_path, steps=3)
    engine.step([0, 40], num_tokens=2)
    engine.step(slots, num_tokens=2, names=names)
    for slot in range(2, 5):
        engine.step([slot], num_tokens=1)
    assert engine.end() == (1, 4)
    (message,) = [r.getMessage() for r in caplog.records if "capture is stopped" in r.getMessage()]
    assert "never tried with vLLM 9.9 on tpu" in message
    assert expected in message


def test_with_drafts_fewer_tokens_are_right_and_none_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path, steps=2)
    engine.step([0], num_tokens=5, drafts=True)
    engine.step([1], num_tokens=5, drafts=True, names=("layers.0",))
    assert engine.end() == (1, 1)
    assert "layer layers.1 saw 0 of 5" in caplog.text


def test_a_release_is_tried_on_one_kind_of_device_and_its_patches_count_with_it() -> None:
    assert is_tried("0.32.4+cpu", "cpu")
    assert not is_tried("0.32.4", "cuda")
    assert not is_tried("0.320.0", "cpu")
    assert TRIED["cpu"][0] == OLDEST_VLLM


def test_the_readme_carries_the_table_of_the_tried_releases() -> None:
    readme = (Path(__file__).parents[2] / "capture" / "README.md").read_text()
    rows = re.findall(r"^\| (\d+\.\d+)\.\d+ \|.*\| passed \| works \|$", readme, re.MULTILINE)
    assert tuple(rows) == TRIED["cpu"]
