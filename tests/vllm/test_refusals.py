"""Engines that cannot be captured completely do not start, and say which layer is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_checkpoints import write_tiny_mla_model
from vllm_engines import ONE_PROCESS, connector, run_offline

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm


def test_an_attention_layer_that_cannot_be_hooked_stops_the_start_up(tmp_path: Path) -> None:
    write_tiny_mla_model(tmp_path / "mla")
    engine = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 2,
        "kv_transfer_config": connector(tmp_path / "traces"),
    }
    finished = run_offline(tmp_path, tmp_path / "mla", engine, [], **ONE_PROCESS)
    assert finished.returncode != 0
    reason = "kvtrace cannot capture layer model.layers.0.self_attn.attn: it is a MLAAttention"
    assert reason in finished.stderr
    assert not list(tmp_path.glob("traces/*.kvtrace"))


@pytest.mark.vllm_full
def test_a_layer_that_the_model_does_not_have_stops_the_start_up(tmp_path: Path, model: Path) -> None:
    engine = {
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 2,
        "kv_transfer_config": connector(tmp_path / "traces", layers=[0, 30]),
    }
    finished = run_offline(tmp_path, model, engine, [], **ONE_PROCESS)
    assert finished.returncode != 0
    assert "layers [30] are to be captured; the model has [0, 1, 2" in finished.stderr
