"""What the plug-in records of the engine's platform, on objects with the answers that vLLM's own give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvtrace_capture.engine_facts import attention_record, engine_record

from kvtrace.trace.format import EngineRecord
from kvtrace.trace.platforms import platform_of

QUESTIONS = ("cuda", "rocm", "cpu", "xpu", "tpu")


def platform(name: str, capability: tuple[int, int] | None = None) -> Any:
    """Return what is asked of vLLM's `current_platform`; Gaudi's answers to no question."""
    answers = {f"is_{one}": (lambda one=one: one == name) for one in QUESTIONS}
    found = SimpleNamespace(major=capability[0], minor=capability[1]) if capability else None
    return SimpleNamespace(**answers, device_name=name, get_device_capability=lambda: found)


def config(device_type: str) -> Any:
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device_type),
        cache_config=SimpleNamespace(cache_dtype="fp8", block_size=16),
        model_config=SimpleNamespace(),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_rank=0
        ),
    )


@pytest.mark.parametrize(
    ("device_type", "name", "capability", "product", "recorded"),
    [
        ("cuda", "cuda", (9, 0), "NVIDIA H100 80GB HBM3", ("cuda", "NVIDIA H100 80GB HBM3", "9.0")),
        ("cuda", "cuda", (10, 0), "NVIDIA B200", ("cuda", "NVIDIA B200", "10.0")),
        ("cuda", "rocm", (9, 4), "AMD Instinct MI300X", ("rocm", "AMD Instinct MI300X", "9.4")),
        ("cpu", "cpu", None, None, ("cpu", "cpu", None)),
        ("xpu", "xpu", None, None, ("xpu", "xpu", None)),
        ("hpu", "hpu", None, None, ("hpu", "hpu", None)),
    ],
)
def test_platform_product_and_compute_capability_are_recorded_apart(
    monkeypatch: pytest.MonkeyPatch,
    device_type: str,
    name: str,
    capability: tuple[int, int] | None,
    product: str | None,
    recorded: tuple[str, str, str | None],
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: product)
    record = engine_record(config(device_type), "0.32.0", platform(name, capability))
    assert (record.platform, record.device, record.compute_capability) == recorded
    assert platform_of(record, []) == recorded[0]
    older = record.model_dump(exclude={"platform", "compute_capability"})
    assert platform_of(EngineRecord.model_validate(older), []) == recorded[0]


def attention_layer(**impl: Any) -> Any:
    """Return a layer with what backends' implementations hold of their logits."""
    return SimpleNamespace(query_quant=None, impl=SimpleNamespace(**{"scale": 0.125, "sinks": None} | impl))


def test_what_shapes_a_layers_attention_is_recorded() -> None:
    sinks = torch.tensor([0.5, -1.0], dtype=torch.bfloat16)
    layer = attention_layer(logits_soft_cap=50.0, sinks=sinks, alibi_slopes=None)
    record = attention_record(layer, query_heads=(2, 3), kv_head_of=(1, 1))
    assert (record.softmax_scale, record.soft_cap, record.sinks) == (0.125, 50.0, (0.5, -1.0))
    assert (record.query_heads, record.kv_head_of) == ((2, 3), (1, 1))
    assert (record.query_is_fp8, record.not_replayable) == (False, ())


def test_a_soft_cap_of_zero_is_none() -> None:
    for cap in (0, None):
        layer = attention_layer(logits_soft_cap=cap)
        assert attention_record(layer, query_heads=(0,), kv_head_of=(0,)).soft_cap is None


def test_what_is_not_recorded_is_named_so_that_no_replay_leaves_it_out() -> None:
    layer = attention_layer(alibi_slopes=torch.ones(1), chunk_lookback=-1, use_alibi_sqrt=False)
    assert attention_record(layer, query_heads=(0,), kv_head_of=(0,)).not_replayable == ("alibi_slopes",)
    layer = attention_layer(attention_chunk_size=8192)
    assert attention_record(layer, query_heads=(0,), kv_head_of=(0,)).not_replayable == (
        "attention_chunk_size",
    )


def test_a_query_is_in_fp8_where_the_layer_rounds_it_and_its_backend_takes_it() -> None:
    for supports in (True, False):
        layer = attention_layer(supports_quant_query_input=supports)
        layer.query_quant = object()
        assert attention_record(layer, query_heads=(0,), kv_head_of=(0,)).query_is_fp8 is supports
