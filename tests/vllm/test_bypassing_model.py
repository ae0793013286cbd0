"""A model that writes its cache itself leaves no trace that looks whole: the layer is named, rows counted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.vllm_checkpoints import write_tiny_model
from support.vllm_engines import ONE_PROCESS, connector, only_trace, run_offline
from support.vllm_tiny import ENGINE, prompts

pytestmark = pytest.mark.vllm

LAYER = "model.layers.1.self_attn.attn"


@pytest.mark.vllm_full
def test_a_layer_that_writes_its_cache_itself_ends_capture_in_the_first_steps(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", "llama")
    outputs = {}
    for layer in ("none", LAYER):
        folder = tmp_path / layer
        engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=1)}
        driver = Path(__file__).with_name("run_bypassing.py")
        asked = {"KVTRACE_BYPASSING_LAYER": layer}
        finished = run_offline(
            folder, tmp_path / "model", engine, [prompts(2, 40, 16)], driver=driver, **ONE_PROCESS, **asked
        )
        assert finished.returncode == 0, finished.stderr[-3000:]
        outputs[layer] = json.loads((folder / "out.json").read_text())["rounds"]
    assert outputs[LAYER] == outputs["none"], "the layer must attend as it did, or this shows nothing"
    assert only_trace(tmp_path / "none" / "traces").dropped == []
    trace = only_trace(tmp_path / LAYER / "traces")
    log = (tmp_path / LAYER / "log.txt").read_text()
    stopped = f"capture is stopped, serving goes on: in 8 steps the hook of layer {LAYER} saw no token"
    assert log.count(stopped) == 1
    assert trace.tokens == []
    expected = sum(len(trace.expected(request)) for request in trace.requests)
    assert sum(line["num_rows"] for line in trace.dropped) == expected
    assert {line["reason"] for line in trace.dropped} == {"hook_failed"}


def test_a_layer_whose_model_says_that_it_writes_the_cache_is_refused() -> None:
    from kvtrace_capture.obstacles import obstacle
    from vllm.model_executor.layers.attention import Attention

    def do_kv_cache_update(
        layer: object, key: object, value: object, kv_cache: object, slot_mapping: object
    ) -> None:
        """Take what the hook takes."""

    module = Attention.__new__(Attention)
    module.attn_type, module.use_direct_call = "decoder", False
    module.attn_backend = SimpleNamespace(get_name=lambda: "ANY", forward_includes_kv_cache_update=False)
    module.impl = SimpleNamespace(do_kv_cache_update=do_kv_cache_update)
    for bypasses in (False, True):
        module.kv_cache_update_bypass = bypasses
        reason = obstacle(LAYER, module, None, {LAYER: (0, 16)})
        assert reason == (
            "its model writes the cache itself (kv_cache_update_bypass), and the hook would not see it"
            if bypasses
            else None
        )
