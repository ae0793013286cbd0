"""The report: every dtype beside `auto`, why one holds less than it promises, and what the engine said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.capacity_cases import CONVOLUTIONS, SHAPE

from kvtrace.capacity.budget import GIB, Budget, exactly, logged_gib
from kvtrace.capacity.build import Rollback, capacity_report
from kvtrace.capacity.engine_facts import EngineFacts
from kvtrace.capacity.lengths import one_length
from kvtrace.capacity.model import ModelLayers, model_layers
from kvtrace.capacity.serving import Serving
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from kvtrace.capacity.report import CapacityReport

LLAMA = SHAPE | {"model_type": "llama", "num_hidden_layers": 5}
WINDOWS = SHAPE | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 8,
    "layer_types": ["sliding_attention"] * 7 + ["full_attention"],
    "sliding_window": 64,
}
STATES = SHAPE | CONVOLUTIONS | {"model_type": "lfm2"}
ON_A_CPU: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_batched_tokens": 128,
    "platform": "cpu",
    "prefix_caching": False,
}


def layers(config: dict[str, Any]) -> ModelLayers:
    return model_layers(config, "config.json", name="m")


def reported(
    config: dict[str, Any], dtypes: list[str], budget: Budget | None = None, **more: Any
) -> CapacityReport:
    engine, rollback = more.pop("engine", None), more.pop("rollback", None)
    return capacity_report(
        layers(config),
        Serving(**(ON_A_CPU | more)),
        dtypes,
        budget=(budget, "as given") if budget else None,
        engine=engine,
        rollback=rollback,
    )


def test_auto_comes_first_and_others_are_compared_with_it() -> None:
    report = reported(LLAMA, ["fp8"], exactly(64 << 20))
    assert [one.label for one in report.formats] == ["auto", "fp8"]
    assert report.formats[1].times_auto_bytes == 2
    assert report.formats[1].times_auto_tokens == pytest.approx(52_352 / 26_112)
    assert not report.warnings


def test_without_a_budget_there_are_bytes_and_no_blocks() -> None:
    one = reported(LLAMA, ["fp8"]).formats[1]
    assert (one.bytes_per_token, one.num_blocks, one.num_tokens) == (1_280, None, None)


def test_a_dtype_that_does_not_fit_is_a_row_with_its_reason() -> None:
    report = reported(LLAMA, ["nvfp4", "fp8"], exactly(64 << 20))
    assert report.formats[1].reason is not None
    assert report.formats[1].bytes_per_token is None
    assert report.formats[2].reason is None


def test_skipping_windows_warns_that_pages_are_padded() -> None:
    report = reported(WINDOWS, ["fp8"], exactly(64 << 20), skip_layers=("sliding_window",))
    assert [one.label for one in report.formats] == ["auto", "fp8", "fp8 without sliding_window"]
    assert [f"{one.times_auto_tokens:.2f}" for one in report.formats[1:]] == ["2.00", "1.09"]
    (warning,) = report.warnings
    assert (warning.kind, warning.label) == ("padding", "fp8 without sliding_window")
    assert "1.09 ×" in warning.text
    assert "2.00 ×" in warning.text


def test_skipping_layers_that_keep_every_token_costs_their_bytes_and_no_warning() -> None:
    report = reported(LLAMA, ["fp8"], exactly(64 << 20), skip_layers=("0", "4"))
    assert report.formats[2].native_layers == (0, 4)
    assert not report.warnings


def test_a_state_keeps_a_smaller_dtype_from_doubling_the_tokens() -> None:
    report = reported(STATES, ["fp8"], exactly(64 << 20), block_size=32)
    (warning,) = report.warnings
    assert warning.kind == "state-block"
    assert "1.71 ×" in warning.text
    assert "from 64 to 96 tokens" in warning.text


def test_more_ranks_than_heads_are_called_copies() -> None:
    report = reported(LLAMA | {"num_key_value_heads": 1}, ["fp8"], tp=4)
    assert report.formats[0].head_copies == 4
    assert [one.kind for one in report.warnings] == ["head-copies"]


def test_a_cache_that_holds_no_request_of_full_length_is_said() -> None:
    report = reported(LLAMA, ["fp8"], exactly(1 << 20))
    assert {one.kind for one in report.warnings} == {"too-small"}
    assert report.formats[0].holds_one_request is False


def test_an_engine_of_the_same_plan_agrees() -> None:
    engine = EngineFacts("log", cache_dtype="fp8_e4m3", num_blocks=409, num_tokens=52_352, max_model_len=512)
    report = reported(LLAMA, ["fp8"], exactly(64 << 20), engine=engine)
    assert report.engine is not None
    assert report.engine.agrees is True
    assert not report.warnings


def test_an_engine_that_differs_is_to_be_trusted() -> None:
    engine = EngineFacts("log", cache_dtype="auto", num_blocks=150, max_model_len=512)
    report = reported(LLAMA, ["fp8"], exactly(64 << 20), engine=engine)
    assert report.engine is not None
    assert report.engine.agrees is False
    assert [one.kind for one in report.warnings] == ["differs-from-engine"]


def test_an_engines_blocks_are_a_budget() -> None:
    engine = EngineFacts("metrics", cache_dtype="auto", num_blocks=204, num_tokens=26_112, max_model_len=512)
    report = reported(LLAMA, ["fp8"], engine=engine)
    assert report.budget is not None
    assert report.budget.num_bytes == 204 * 327_680
    assert [one.num_blocks for one in report.formats] == [204, 408]
    assert report.engine is not None
    assert report.engine.agrees is True


def test_a_logs_decimals_leave_a_range_of_blocks() -> None:
    one = reported(LLAMA, ["fp8"], logged_gib("1.00")).formats[0]
    assert one.least_blocks == round(0.995 * GIB) // 327_680
    assert one.most_blocks == round(1.005 * GIB) // 327_680


def test_the_way_back_names_the_limit_to_set_first() -> None:
    asked = Rollback(60, one_length(512))
    back = reported(LLAMA, ["fp8"], exactly(64 << 20), rollback=asked).rollback
    # 203 usable blocks of 128 tokens, 4 a request
    assert back is not None
    assert (back.fits, back.limit_to_set, back.basis, back.usable_blocks) == (False, 50, "planned", 203)


def test_a_limit_that_fits_stays() -> None:
    back = reported(LLAMA, ["fp8"], exactly(64 << 20), rollback=Rollback(50, one_length(512))).rollback
    assert back is not None
    assert (back.fits, back.limit_to_set) == (True, 50)


def test_the_baseline_may_have_a_budget_of_its_own() -> None:
    asked = Rollback(60, None, budget=exactly(128 << 20))
    back = reported(LLAMA, ["fp8"], exactly(64 << 20), rollback=asked).rollback
    assert back is not None
    assert back.usable_blocks == 408


@pytest.mark.parametrize(
    ("asked", "budget", "words"),
    [
        (Rollback(60, None), None, "give --budget"),
        (Rollback(60, None, "simulated"), exactly(64 << 20), "needs a trace"),
        (Rollback(60, None, "planned"), exactly(64 << 20), "--tokens-per-request"),
    ],
)
def test_a_way_back_that_cannot_be_told_says_what_it_needs(
    asked: Rollback, budget: Budget | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        reported(LLAMA, ["fp8"], budget, rollback=asked)


def test_formats_by_layer_that_only_leave_layers_native_are_skipped_layers() -> None:
    asked = reported(LLAMA, ["fp8/0,4:auto"], exactly(64 << 20), platform="gpu").formats
    skipped = reported(LLAMA, ["fp8"], exactly(64 << 20), platform="gpu", skip_layers=("0", "4")).formats
    assert [one.label for one in asked] == ["auto", "fp8_e4m3", "fp8/0,4:auto"]
    assert asked[2].vllm_flags == "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 0 4"
    same = {"label": "", "cache_dtype": ""}
    assert asked[2].model_copy(update=same) == skipped[2].model_copy(update=same)


def test_formats_by_layer_that_no_release_serves_are_priced_and_say_so() -> None:
    report = reported(LLAMA, ["fp8/0:auto/2-3:k=fp8,v=nvfp4"], exactly(64 << 20), platform="gpu")
    one = report.formats[1]
    # 2 heads of 64: 512 bytes native, 256 in FP8, 2 · (64 + 36) for the pair
    assert one.bytes_per_token == 512 + 2 * 256 + 2 * 200
    assert (one.bytes_per_block, one.block_size, one.vllm_flags) == (16 * one.bytes_per_token, 16, None)
    assert [warning.kind for warning in report.warnings] == ["not-served"]


def test_k_and_v_in_different_formats_are_priced() -> None:
    report = reported(LLAMA, ["k=bf16,v=fp8"], exactly(64 << 20), platform="gpu")
    assert report.formats[1].bytes_per_token == 5 * 2 * (128 + 64)


def test_windows_left_native_by_layer_warn_as_skipped_windows_do() -> None:
    report = reported(WINDOWS, ["fp8/0-6:auto"], exactly(64 << 20))
    assert [f"{one.times_auto_tokens:.2f}" for one in report.formats[1:]] == ["2.00", "1.09"]
    assert [(one.kind, one.label) for one in report.warnings] == [("padding", "fp8/0-6:auto")]


def test_a_layer_that_the_model_lacks_is_a_row_with_its_reason() -> None:
    (one,) = reported(LLAMA, ["fp8/5:auto"]).formats[1:]
    assert one.reason == "cache dtype fp8_e4m3/5:auto: lists layer 5, m has layers 0 to 4"
