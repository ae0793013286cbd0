"""A short seed of every fuzzer; `make fuzz` goes on for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults.scratch import scratch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.__main__ import one_case
from fuzz.bases import Bases
from fuzz.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUND = (
    ("runs", "20261130:7174"),  # evidence with a number of 5,000 digits
    ("runs", "20261130:9589"),  # evidence that is no JSON
    ("runs", "20261130:11080"),  # a phase that there is not
    ("runs", "20261130:17779"),  # tables that name other workloads than each other
    ("capacity configs", "20261130:9804"),  # a dtype that is a list
    ("records of a trace", "20261201:3510"),  # rows that were lost, more than any request has
    ("runs", "20261201:4172"),  # a scale that covers NULL
    ("runs", "20261201:7358"),  # the same, compared
    ("runs", "20261201:13919"),  # a severity that there is not
    ("runs", "20261201:16349"),  # a dtype that there is not
    ("runs", "555:481"),  # a candidate without a name
    ("runs", "555:625"),  # a scale of a head that is in no other table
    ("policies", "20261202:1155"),  # a limit of 1e-300
    ("runs", "20261203:4819"),  # a workload that is missing
    ("runs with harm", "20261203:17096"),  # a stratum that no row is in
    ("runs with harm", "20261203:19576"),  # a text that is missing
    ("served requests", "20261201:7444"),  # a run that took forever
)
"""Cases that long runs found wrong."""


@pytest.fixture(scope="module")
def bases() -> Iterator[Bases]:
    with scratch() as folder:
        yield Bases(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_in_a_file_a_command_ends_as_documented(bases: Bases, kind: str) -> None:
    @given(st.integers(0, 2**32))
    @settings(max_examples=15, deadline=None, derandomize=True)
    def holds(seed: int) -> None:
        one_case(bases, bases.trace.parent.parent, kind, str(seed))

    holds()


@pytest.mark.parametrize(("kind", "seed"), FOUND)
def test_what_a_long_run_found_is_mended(bases: Bases, kind: str, seed: str) -> None:
    one_case(bases, bases.trace.parent.parent, kind, seed)
