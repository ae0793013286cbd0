"""Whether a baseline holds what a candidate admits: by hand, and against a count of all draws."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from support.capacity_cases import SHAPE

from kvtrace.capacity.lengths import LengthClass, Lengths, one_length
from kvtrace.capacity.model import model_layers
from kvtrace.capacity.plan import CachePlan, plan_cache
from kvtrace.capacity.rollback import DRAWS, Headroom, headroom
from kvtrace.capacity.serving import Serving

GIB = 1 << 30
LLAMA_8B = SHAPE | {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
}


def plan(cache_dtype: str = "auto", **serving: Any) -> CachePlan:
    settings = {"max_model_len": 8192, "cache_dtype": cache_dtype, "block_size": 16} | serving
    return plan_cache(model_layers(LLAMA_8B, "config.json", name="m"), Serving(**settings))


def by_basis(found: tuple[Headroom, ...]) -> dict[str, Headroom]:
    return {one.basis: one for one in found}


def test_256_requests_of_2000_tokens_fit_fp8_and_not_bf16() -> None:
    # 125 blocks each; 40 GiB are 40,960 blocks of 16 tokens in fp8 and 20,480 in bf16, one of them never used
    fp8, bf16 = plan("fp8"), plan()
    assert (fp8.num_blocks(40 * GIB), bf16.num_blocks(40 * GIB)) == (40_960, 20_480)
    of_fp8 = by_basis(headroom(fp8, 40_960, 256, one_length(2000)))["planned"]
    of_bf16 = by_basis(headroom(bf16, 20_480, 256, one_length(2000)))["planned"]
    assert (of_fp8.fits, of_fp8.largest_limit) == (True, 327)
    assert (of_bf16.fits, of_bf16.largest_limit, of_bf16.blocks_needed) == (False, 163, 32_000)


def test_at_the_largest_limit_it_fits_and_one_more_does_not() -> None:
    bf16, lengths = plan(), one_length(2000)
    for limit, fits in ((163, True), (164, False)):
        assert by_basis(headroom(bf16, 20_480, limit, lengths))["planned"].fits is fits


def test_the_worst_case_takes_every_request_at_full_length() -> None:
    found = by_basis(headroom(plan(), 20_480, 256, None))
    # 8,192 tokens are 512 blocks: 20,479 / 512 = 39.99
    assert set(found) == {"worst"}
    assert (found["worst"].fits, found["worst"].largest_limit) == (False, 39)


def test_classes_are_planned_by_their_shares() -> None:
    classes = (LengthClass("short", 0.75, 160), LengthClass("long", 0.25, 1600))
    found = by_basis(headroom(plan(), 20_480, 100, Lengths(classes, {})))["planned"]
    assert found.blocks_needed == 100 * (0.75 * 10 + 0.25 * 100)
    assert found.largest_limit == 630  # 20,479 / 32.5


def test_tokens_are_rounded_up_to_blocks_for_each_request() -> None:
    # One token more than a block takes two: 17 tokens in blocks of 16.
    found = by_basis(headroom(plan(), 101, 60, Lengths((LengthClass("all", 1.0, 17),), {17: 5})))
    assert (found["planned"].blocks_needed, found["planned"].largest_limit) == (120, 50)
    assert (found["simulated"].overflow_frac, found["simulated"].largest_limit) == (1.0, 50)


def test_draws_overflow_as_often_as_counting_all_of_them_says() -> None:
    # 3 requests of 1 or 4 blocks, one in four is long; 9 usable blocks: what is over is 3 long ones, 1 in 64.
    lengths = Lengths((LengthClass("all", 1.0, 64),), {16: 3, 64: 1})
    exact = sum(
        0.75 ** drawn.count(1) * 0.25 ** drawn.count(4)
        for drawn in product((1, 4), repeat=3)
        if sum(drawn) > 9
    )
    found = by_basis(headroom(plan(), 10, 3, lengths))["simulated"]
    assert found.overflow_frac is not None
    assert found.overflow_frac == pytest.approx(exact, abs=4 * (exact / DRAWS) ** 0.5)
    assert exact == 1 / 64
    assert found.fits is False
    assert found.largest_limit == 2


def test_the_same_question_has_the_same_answer() -> None:
    lengths = Lengths((LengthClass("all", 1.0, 900),), {100: 9, 900: 1})
    first = headroom(plan(), 2_000, 200, lengths)
    assert first == headroom(plan(), 2_000, 200, lengths)
