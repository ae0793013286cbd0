"""Engines that cannot be captured completely do not start, and say which layer is to blame."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_checkpoints import write_tiny_mla_model
from support.vllm_engines import ONE_PROCESS, connector, run_offline

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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
            "decode_context_parallel_size > 1: slots are split over ranks",
        ),
        (
            {"prefill_context_parallel_size": 2},
            "prefill_context_parallel_size > 1: slots are split over ranks",
        ),
        ({"enable_dbo": True}, "with micro-batching"),
        ({"ubatch_size": 2}, "with micro-batching"),
        ({"fuse_rope_kvcache": True}, "with pass_config.fuse_rope_kvcache: it fuses the cache write"),
        ({"fuse_qk_norm_rope_kvcache": True}, "with pass_config.fuse_qk_norm_rope_kvcache: it fuses"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_that_lead_cache_writes_past_the_hook_are_refused(
    options: dict[str, Any], reason: str
) -> None:
    """The configuration objects are vLLM's own, so an option that it renames fails here."""
    from kvtrace_capture.obstacles import UnsupportedEngineError, refuse_unsupported
    from vllm.config import ParallelConfig
    from vllm.config.compilation import PassConfig

    parallel = {key: value for key, value in options.items() if hasattr(ParallelConfig, key)}
    passes = PassConfig()
    fused = {key for key in options if hasattr(passes, key)}
    for key in fused:
        setattr(passes, key, True)  # vLLM's own check takes it back where there is no ROCm
    assert set(options) == {*parallel, *fused}
    config = SimpleNamespace(
        parallel_config=ParallelConfig(**parallel),
        compilation_config=SimpleNamespace(pass_config=passes),
    )
    with pytest.raises(UnsupportedEngineError) as refused:
        refuse_unsupported(config)
    assert reason in str(refused.value)
