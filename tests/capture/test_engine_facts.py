"""What the plug-in records of the engine's platform, on objects with the answers that vLLM's own give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvtrace_capture.engine_facts import engine_record

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
