"""Packed arrays, undone here by the format's own rules: base64 of deflated little-endian numbers."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
import pytest

from kvtrace.report.html.arrays import pack_counts, pack_decibels, pack_exact, pack_shares


def codes(packed: dict[str, Any], dtype: str = "<u2") -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype)


def test_exact_numbers_come_back_bit_for_bit() -> None:
    array = np.array([[0.1, math.nan], [1e-300, 448.0]])
    packed = pack_exact(array)
    assert packed["shape"] == [2, 2]
    np.testing.assert_array_equal(codes(packed, "<f8"), array.reshape(-1))


def test_shares_keep_zero_and_missing_apart_and_lie_within_half_a_step() -> None:
    shares = np.array([0.0, math.nan, 1e-7, 3.3e-5, 0.5, 1.0])
    packed = pack_shares(shares, 0.01)
    found = codes(packed)
    assert found[0] == 0
    assert found[1] == 0xFFFF
    span = math.log(packed["high"] / packed["low"]) / packed["steps"]
    back = packed["low"] * np.exp((found[2:].astype(float) - 1) * span)
    np.testing.assert_allclose(back, shares[2:], rtol=0.0051)


@pytest.mark.parametrize("value", [0.0, 0.25])
def test_shares_that_are_all_the_same_survive(value: float) -> None:
    packed = pack_shares(np.full(3, value))
    assert set(codes(packed)) == {0 if value == 0 else 1}
    assert value in (0, packed["low"])


def test_decibels_are_counted_from_the_lowest_in_even_steps() -> None:
    packed = pack_decibels(np.array([20.0, 20.5, math.nan, 31.97]), 0.1)
    assert packed["low"] == 20
    assert codes(packed).tolist() == [0, 5, 0xFFFF, 120]


def test_counts_too_large_for_the_format_stop_at_the_largest() -> None:
    assert codes(pack_counts(np.array([0, 7, 1_000_000]))).tolist() == [0, 7, 65_534]
