"""A short seed of every fuzzer; `make fuzz` goes on for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults.scratch import scratch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.__main__ import one_case
from fuzz.bases import Bases
from fuzz.judge import built_once
from fuzz.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def bases() -> Iterator[Bases]:
    with scratch() as folder, built_once():
        yield Bases(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_in_a_file_a_command_ends_as_documented(bases: Bases, kind: str) -> None:
    @given(st.integers(0, 2**32))
    @settings(max_examples=15, deadline=None, derandomize=True)
    def holds(seed: int) -> None:
        one_case(bases, bases.trace.parent.parent, kind, str(seed))

    holds()
