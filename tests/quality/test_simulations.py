"""A few draws of `make quality-simulations`, with bounds that its many draws keep with room to spare."""

from __future__ import annotations

import pytest
from quality.simulate import coverage, false_within, far_from_within, interval

DRAWS = 100


@pytest.mark.parametrize("row", [(100, 0.02, 0.01), (100, 0.05, 0.02)])
def test_a_90_percent_interval_covers(row: tuple[int, float, float]) -> None:
    own, _, ratio = coverage(row, DRAWS, seed=1)
    assert own >= 0.9
    assert 1.0 < ratio < 1.3


def test_a_loss_of_the_margin_is_rarely_called_within_and_more_often_by_who_looks_again() -> None:
    once = false_within(1, DRAWS, 2, split=False, pairs=200)
    often = false_within(5, DRAWS, 2, split=False, pairs=200)
    planned = false_within(5, DRAWS, 2, split=True, pairs=200)
    assert once <= 0.08
    assert planned <= 0.08
    assert often > planned


@pytest.mark.parametrize("counts", [(0, 3, 60), (1, 4, 100), (4, 6, 200), (2, 2, 300)])
def test_what_the_shortcut_leaves_out_is_not_within(counts: tuple[int, int, int]) -> None:
    assert interval(*counts, 0.9).high > 0.02 or not far_from_within(*counts, 0.9)
