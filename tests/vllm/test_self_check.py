"""A vLLM that is taken for one that was never tried: the self-check lets it capture, or stops it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.vllm_checkpoints import write_tiny_model
from support.vllm_engines import ONE_PROCESS, StoredTrace, connector, only_trace, run_offline

pytestmark = pytest.mark.vllm

DRIVER = Path(__file__).with_name("run_untried.py")
ENGINE = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "seed": 0,
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
SAMPLING = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "detokenize": False}
ROUNDS = [
    [{"token_ids": list(range(3, 83)), "sampling": SAMPLING}, {"token_ids": [5, 6, 7], "sampling": SAMPLING}]
]
LAYER = "model.layers.1.self_attn.attn"


def serve(folder: Path, **environment: str) -> tuple[StoredTrace, str, int]:
    """Serve two requests; return the trace, the log, and how many output tokens there were."""
    write_tiny_model(folder / "model", "llama")
    engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=1)}
    finished = run_offline(
        folder, folder / "model", engine, ROUNDS, driver=DRIVER, **ONE_PROCESS, **environment
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (outputs,) = json.loads((folder / "out.json").read_text())["rounds"]
    log = finished.stdout + finished.stderr
    return only_trace(folder / "traces"), log, sum(len(output["output"]) for output in outputs)


@pytest.mark.vllm_full  # make test-vllm-versions does the same in every version
def test_an_untried_version_that_writes_every_layer_is_captured_whole_with_a_warning(tmp_path: Path) -> None:
    trace, log, num_outputs = serve(tmp_path)
    assert num_outputs == 24
    assert "never tried with vLLM" in log
    assert "but the self-check passed: each of 3 layers wrote all" in log
    assert set(trace.tokens) == {(r, p) for r in trace.requests for p in trace.expected(r)}
    assert trace.dropped == []
    settings = json.loads((trace.path / "trace.json").read_text())["engine"]["settings"]
    assert settings["tried_with_kvtrace"] is False


def test_a_layer_whose_hook_is_not_called_stops_capture_by_its_name_and_no_request(tmp_path: Path) -> None:
    trace, log, num_outputs = serve(tmp_path, KVTRACE_SILENT_LAYER=LAYER)
    assert num_outputs == 24
    assert log.count(f"the hook of layer {LAYER} saw 0 of 32 scheduled tokens") == 1
    assert trace.tokens == []
    assert sum(line["num_rows"] for line in trace.dropped) == sum(
        len(trace.expected(request)) for request in trace.requests
    )
    assert {line["reason"] for line in trace.dropped} == {"hook_failed"}
