"""Drafts are counted from what a scheduler knows, whatever of its steps is still on its way."""

from __future__ import annotations

import random
from collections import deque

import pytest
from kvtrace_capture.acceptance import DraftCount


class Scheduled:
    """A request as vLLM's scheduler keeps its counts: a step is planned, and its tokens come back later.

    The rules are those of `Scheduler._update_after_schedule`, `update_from_output` and, for placeholders,
    of `AsyncScheduler`.
    """

    def __init__(self, prompt_tokens: int, *, is_async: bool, cuts_placeholders: bool = False) -> None:
        self.num_prompt_tokens, self.num_output_tokens = prompt_tokens, 0
        self.num_computed_tokens = self.num_output_placeholders = 0
        self.is_async, self.cuts_placeholders = is_async, cuts_placeholders
        self.in_flight: deque[tuple[int, bool]] = deque()
        self.num_planned = 0
        self.count = DraftCount(self)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def plan(self, num_drafts: int, at_most: int = 10**9) -> None:
        left = self.num_tokens + num_drafts + self.num_output_placeholders - self.num_computed_tokens
        num_tokens = min(left, at_most)
        end = self.num_computed_tokens + num_tokens
        known = self.num_tokens + self.num_output_placeholders
        num_drafts = max(end - known, 0)
        self.count.plan(self.num_planned, end, num_drafts)
        self.num_planned += 1
        self.num_computed_tokens = end
        samples = end >= known
        if samples and self.is_async:
            self.num_output_placeholders += 1 + num_drafts
        self.in_flight.append((num_drafts, samples))

    def come_back(self, num_accepted: int, *, stop_after: int | None = None) -> None:
        num_drafts, samples = self.in_flight.popleft()
        if not samples:
            return
        num_rejected, came = num_drafts - num_accepted, num_accepted + 1
        self.num_computed_tokens -= num_rejected
        kept = came if stop_after is None else stop_after
        self.num_output_tokens += kept
        if self.is_async:
            self.num_output_placeholders -= num_rejected + (kept if self.cuts_placeholders else came)

    def counts(self) -> tuple[int, int]:
        self.count.settle()
        return self.count.proposed, self.count.accepted


def test_each_step_gives_a_token_besides_the_drafts_that_it_accepts() -> None:
    request = Scheduled(10, is_async=False)
    for num_drafts, num_accepted in [(0, 0), (3, 0), (3, 3), (2, 1), (0, 0)]:
        request.plan(num_drafts)
        request.come_back(num_accepted)
    assert request.counts() == (8, 4)


def test_a_prompt_in_chunks_proposes_nothing_until_its_end() -> None:
    request = Scheduled(10, is_async=False)
    for _ in range(3):
        request.plan(0, at_most=4)
        request.come_back(0)
    request.plan(2)
    request.come_back(2)
    assert request.counts() == (2, 2)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_on_their_way_are_counted_once_they_come_back(seed: int, depth: int) -> None:
    drawn = random.Random(seed)
    request = Scheduled(drawn.randrange(1, 40), is_async=depth > 1)
    proposed = accepted = 0

    def take_back() -> None:
        nonlocal proposed, accepted
        num_drafts, _ = request.in_flight[0]
        num_accepted = drawn.randint(0, num_drafts)
        proposed, accepted = proposed + num_drafts, accepted + num_accepted
        request.come_back(num_accepted)

    for _ in range(30):
        request.plan(drawn.randint(0, 4), at_most=drawn.choice([7, 100]))
        while len(request.in_flight) >= depth:
            take_back()
    while request.in_flight:
        take_back()
    assert request.counts() == (proposed, accepted)


@pytest.mark.parametrize("cuts_placeholders", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_drafts_after_a_stop_are_not_accepted(is_async: bool, cuts_placeholders: bool) -> None:
    request = Scheduled(5, is_async=is_async, cuts_placeholders=cuts_placeholders)
    request.plan(0)
    if is_async:
        request.plan(3)  # before anything of the first is known
    request.come_back(0)
    request.plan(3)  # asynchronous: the step that was sent too many
    request.come_back(3, stop_after=2)
    assert request.counts() == (3, 1)


def test_a_step_that_never_comes_back_is_not_counted() -> None:
    for is_async in (False, True):
        request = Scheduled(5, is_async=is_async)
        request.plan(0)
        request.come_back(0)
        request.plan(4)
        assert request.counts() == (0, 0), "aborted"


def test_a_preemption_throws_what_is_on_its_way_out_of_the_counts() -> None:
    request = Scheduled(5, is_async=True)
    request.plan(0)
    request.plan(4)
    request.come_back(0)
    request.num_output_placeholders = request.num_computed_tokens = 0  # Scheduler._preempt_request
    request.in_flight.clear()
    request.plan(0)
    request.come_back(0)
    request.plan(2)
    request.come_back(1)
    assert request.counts() == (2, 1)


def test_rejected_drafts_are_told_by_position_and_the_step_that_computed_them() -> None:
    request = Scheduled(10, is_async=False)
    for num_drafts, num_accepted in [(0, 0), (3, 1), (3, 3), (2, 0)]:
        request.plan(num_drafts)
        request.come_back(num_accepted)
    request.count.settle()
    # Step 1 runs 10 to 13 and keeps 10 and 11; step 2 runs 12 to 15 and keeps all; step 3 runs 16 to 18.
    assert request.count.rejected == {12: 1, 13: 1, 17: 3, 18: 3}


def test_of_rejected_drafts_those_that_no_row_is_stored_of_are_not_kept() -> None:
    request = Scheduled(10, is_async=False)
    request.count = DraftCount(request, lambda position: position % 2 == 1)
    for num_drafts, num_accepted in [(0, 0), (3, 0)]:
        request.plan(num_drafts)
        request.come_back(num_accepted)
    request.count.settle()
    assert request.count.rejected == {11: 1, 13: 1}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("depth", [1, 2])
def test_whichever_rows_are_lost_what_is_left_of_a_position_is_its_token(seed: int, depth: int) -> None:
    """The worker's own positions are followed beside: it runs from the last token that it sampled."""
    drawn = random.Random(seed)
    request = Scheduled(drawn.randrange(1, 20), is_async=depth > 1)
    written: dict[int, list[tuple[int, bool]]] = {}
    at, in_flight = 0, deque[tuple[int, int]]()

    def run_oldest() -> None:
        nonlocal at
        step, num_tokens = in_flight.popleft()
        num_drafts, _ = request.in_flight[0]
        num_accepted = drawn.randint(0, num_drafts)
        kept = num_tokens - num_drafts + num_accepted
        for place in range(num_tokens):
            written.setdefault(at + place, []).append((step, place < kept))
        at += kept
        request.come_back(num_accepted)
        request.count.look()

    for _ in range(25):
        step, before = request.num_planned, request.num_computed_tokens
        request.plan(drawn.randint(0, 4), at_most=drawn.choice([6, 100]))
        in_flight.append((step, request.num_computed_tokens - before))
        while len(in_flight) >= depth:
            run_oldest()
    while in_flight:
        run_oldest()
    for position, writes in written.items():
        for lost in range(len(writes)):  # this many of the last writes
            step, is_right = writes[len(writes) - 1 - lost]
            if position < request.num_tokens - 1 and step > request.count.rejected.get(position, -1):
                assert is_right, (position, writes)
        if position < request.num_tokens - 1:
            assert writes[-1][1]
            assert writes[-1][0] > request.count.rejected.get(position, -1)
