"""R from sums: by hand, additive over layers, and what it is called by what was known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvtrace.attention.replay import AttentionErrors
from kvtrace.attention.residual import ResidualSums


def errors(
    o2: list[list[float]], do2: list[list[list[float]]], a2: list[float] | None = None, da2: Any = None
) -> AttentionErrors:
    """o2: [query][head]; do2: [candidate][query][head]; a2: [query]; da2: [candidate][query]."""
    empty = np.full(np.shape(do2), np.nan)
    names = ("sum_o_do", "sum_do2_k", "sum_do2_v", "sum_do2_q", "sum_kl", "sum_fisher", "num_flips")
    return AttentionErrors(
        position=np.arange(len(o2), dtype=np.int32),
        num_keys=np.ones(len(o2), np.int64),
        sum_o2=np.array(o2),
        sum_do2=np.array(do2),
        top_overlap=empty,
        projected=None if da2 is None else np.array(da2),
        projected_output=None if a2 is None else np.array(a2),
        **dict.fromkeys(names, empty),
    )


def test_by_hand_with_w_o_and_with_the_residual_stream() -> None:
    # The worked example: W_O = I, ‖Δo‖² = 0.5, ‖o‖² = 0.625, h = (2, 0), so w = 0.625 / 4.
    sums = ResidualSums()
    sums.add(0, errors([[0.625]], [[[0.5]]], [0.625], [[0.5]]))
    assert sums.error().knowledge == "projected"
    assert sums.error().total == pytest.approx([0.8])
    assert sums.error({0: 0.625 / 4}).knowledge == "residual"
    assert sums.error({0: 0.625 / 4}).total == pytest.approx([0.125])


def test_requests_add_up_before_they_are_divided() -> None:
    sums = ResidualSums()
    sums.add(0, errors([[1.0], [1.0]], [[[0.5], [0.5]]], [1.0, 1.0], [[0.5, 0.5]]))
    sums.add(0, errors([[8.0]], [[[0.0]]], [8.0], [[0.0]]))
    assert sums.error().total == pytest.approx([0.1])


def test_it_is_the_sum_of_its_layers_and_candidates_stay_apart() -> None:
    sums = ResidualSums()
    sums.add(4, errors([[2.0]], [[[1.0]], [[0.5]]], [2.0], [[1.0], [0.5]]))
    sums.add(1, errors([[4.0]], [[[1.0]], [[3.0]]], [4.0], [[1.0], [3.0]]))
    found = sums.error()
    assert found.layers == (1, 4)
    assert found.by_layer.tolist() == [[0.25, 0.5], [0.75, 0.25]]
    assert found.total.tolist() == [0.75, 1.0]


def test_without_w_o_it_is_a_mean_over_layers_and_heads() -> None:
    sums = ResidualSums()
    sums.add(0, errors([[1.0, 2.0]], [[[0.5, 0.5]]]))
    sums.add(1, errors([[1.0, 1.0]], [[[0.0, 1.0]]]))
    assert sums.error({0: 1.0, 1: 1.0}).knowledge == "heads"
    assert sums.error().total == pytest.approx([(0.5 + 0.25 + 0 + 1) / 4])


def test_where_one_layer_lacks_something_none_counts_by_it() -> None:
    sums = ResidualSums()
    sums.add(0, errors([[1.0]], [[[0.5]]], [1.0], [[0.5]]))
    sums.add(1, errors([[1.0]], [[[0.5]]], [1.0], [[0.5]]))
    assert sums.error({0: 0.1}).knowledge == "projected"
    sums.add(2, errors([[1.0]], [[[0.5]]]))
    assert sums.error({0: 0.1, 1: 0.1, 2: 0.1}).knowledge == "heads"


def test_a_layer_whose_outputs_are_all_zero_has_no_ratio() -> None:
    sums = ResidualSums()
    sums.add(0, errors([[0.0]], [[[0.5]]], [0.0], [[0.5]]))
    assert np.isnan(sums.error().total).all()
