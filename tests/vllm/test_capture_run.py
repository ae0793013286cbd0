"""`kvtrace capture run` from a shell: labelled prompts, an interruption, and engines that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.vllm_checkpoints import write_tiny_mla_model
from support.vllm_engines import ENVIRONMENT, StoredTrace

from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

PROMPTS = [
    {"prompt": "Tell me a short story about a river.", "workload": "chat", "id": "a-1", "max_tokens": 6},
    {"messages": [{"role": "user", "content": "Name three trees."}], "workload": "code", "max_tokens": 9},
    {"prompt": "Once upon a time", "workload": "chat", "max_tokens": 6},
]


def start(folder: Path, model: Path, prompts: list[object], *arguments: str) -> subprocess.Popen[str]:
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "kvtrace", "capture", "run", "--model", str(model)),
            *("--prompts", str(folder / "prompts.jsonl"), "-o", str(folder / "out" / "t.kvtrace")),
            *("--vllm-python", sys.executable, "--engine-arg", "max_model_len=256"),
            *("--engine-arg", "gpu_memory_utilization=0.4", "--engine-arg", "enforce_eager=true"),
            *arguments,
        ],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


def test_every_prompt_is_captured_with_its_label_and_the_trace_lies_where_it_was_asked_for(
    tmp_path: Path, model: Path
) -> None:
    process = start(tmp_path, model, PROMPTS, "--position-stride", "1")
    out, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    assert out == f"{tmp_path}/out/t.kvtrace\n"
    assert log == ""
    trace = StoredTrace(tmp_path / "out" / "t.kvtrace")
    found = sorted((r["workload"], bool(r["client_id"])) for r in trace.requests.values())
    assert found == [("chat", False), ("chat", True), ("code", False)]
    assert all(
        1 <= r["output_tokens"] <= (9 if r["workload"] == "code" else 6) for r in trace.requests.values()
    )
    assert set(trace.tokens) == {(r, p) for r in trace.requests for p in trace.expected(r)}
    assert trace.commit["closed"]
    assert left_over(tmp_path) == ["kvtrace.key", "t.kvtrace"]


def test_ctrl_c_leaves_a_readable_trace_of_what_was_done(tmp_path: Path, model: Path) -> None:
    many = [{"prompt": f"Count to {n}: one, two,", "workload": "chat", "max_tokens": 200} for n in range(400)]
    process = start(tmp_path, model, many, "--flush-seconds", "0.5", "--engine-arg", "max_num_seqs=4")
    deadline = time.monotonic() + 300
    while not any(
        "k/c/" in str(path)
        for path in tmp_path.glob("out/.t.kvtrace.partial-*/*.kvtrace/rank-0.zarr/**/k/c/*/*")
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, log = process.communicate(timeout=120)
    assert process.returncode == 130, log
    assert out == ""
    assert "holds what was committed" in log
    trace = open_trace(tmp_path / "out" / "t.kvtrace")
    assert len(trace.tokens.request) > 0
    assert 0 < len(trace.requests) <= len(many)
    assert left_over(tmp_path) == ["kvtrace.key", "t.kvtrace"]


def test_ctrl_c_while_the_engine_starts_leaves_nothing(tmp_path: Path, model: Path) -> None:
    process = start(tmp_path, model, PROMPTS)
    while not list(tmp_path.glob("out/.t.kvtrace.partial-*/vllm.log")):
        time.sleep(0.1)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted after 0 of 3 requests; nothing is left" in log
    assert set(left_over(tmp_path)) <= {"kvtrace.key"}


@pytest.mark.vllm_full
def test_a_refused_engine_is_one_line_with_its_reason_and_the_log_is_kept(tmp_path: Path) -> None:
    write_tiny_mla_model(tmp_path / "mla")
    arguments = ("--engine-arg", "load_format=dummy", "--engine-arg", "skip_tokenizer_init=true")
    process = start(tmp_path, tmp_path / "mla", PROMPTS[:1], *arguments)
    out, log = process.communicate(timeout=300)
    assert (process.returncode, out, log.count("\n")) == (2, "", 1), log
    assert "kvtrace cannot capture layer model.layers.0.self_attn.attn: it is a MLAAttention" in log
    assert "t.kvtrace.log" in log
    assert set(left_over(tmp_path)) <= {"kvtrace.key", "t.kvtrace.log"}
    assert "MLAAttention" in (tmp_path / "out" / "t.kvtrace.log").read_text()


@pytest.mark.vllm_full
def test_a_prompt_that_is_too_long_is_named_by_its_line(tmp_path: Path, model: Path) -> None:
    process = start(tmp_path, model, [PROMPTS[0], {"prompt": "tree " * 400, "workload": "chat"}])
    out, log = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert "line 2: its prompt has 4" in log
    assert "256 at most (max_model_len)" in log
