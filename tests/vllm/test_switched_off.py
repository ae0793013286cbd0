"""Capture changes no output, and without its flag the engine is as if kvtrace were not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_prompts import ONE_BY_ONE

if TYPE_CHECKING:
    from support.vllm_engines import Captured

pytestmark = pytest.mark.vllm


def test_outputs_at_temperature_zero_are_the_same_with_and_without_capture(
    captured: Captured, switched_off: Any
) -> None:
    _, rounds, _ = captured
    assert len(switched_off["rounds"]) == len(ONE_BY_ONE) + 2
    assert switched_off["rounds"] == rounds[: len(switched_off["rounds"])]


def test_without_the_flag_nothing_but_the_entry_point_is_loaded(switched_off: Any) -> None:
    for process in (switched_off["worker"], switched_off["front_end"]):
        assert set(process["modules"]) <= {"kvtrace_capture", "kvtrace_capture.plugin"}
        assert not any("kvtrace" in thread for thread in process["threads"])
        assert process["wrapped"] == []


def test_with_the_flag_every_layer_is_wrapped_and_one_writer_runs(
    captured: Captured,
) -> None:
    _, _, out = captured
    assert len(out["worker"]["wrapped"]) == 30
    assert out["worker"]["threads"].count("kvtrace-writer") == 1
