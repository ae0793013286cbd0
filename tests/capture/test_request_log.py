"""The scheduler's side, fed what vLLM 0.32's scheduler says at each step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace_capture.journal import Journal
from kvtrace_capture.privacy import hash_external_id
from kvtrace_capture.request_log import RequestLog
from kvtrace_capture.sampler import Sampler
from kvtrace_capture.sampling_switch import Sampling
from kvtrace_capture.settings import CaptureSettings

from kvtrace.trace.format import RequestRecord, unseal

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 16


def request(name: str, prompt_tokens: int, **changes: Any) -> Any:
    labels = changes.pop("labels", {"kvtrace_workload": "chat", "kvtrace_id": name})
    fields = {
        "request_id": name,
        "sampling_params": SimpleNamespace(extra_args=labels),
        "prompt_token_ids": list(range(prompt_tokens)),
        "num_prompt_tokens": prompt_tokens,
        "num_tokens": prompt_tokens,
        "num_output_tokens": 0,
        "num_preemptions": 0,
        "resumable": False,
        "status": "FINISHED_LENGTH_CAPPED",
        "get_finished_reason": lambda: "length",
    }
    return SimpleNamespace(**{**fields, **changes})


def step(
    *,
    new: dict[str, tuple[int, int, list[int]]] | None = None,
    cached: dict[str, tuple[int, int, list[int] | None]] | None = None,
    resumed: tuple[str, ...] = (),
    drafts: dict[str, int] | None = None,
) -> Any:
    """Return a step by request: (tokens computed before, tokens scheduled, new block ids), and drafts."""
    new, cached = new or {}, cached or {}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=start, block_ids=(blocks,))
            for name, (start, _, blocks) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            num_computed_tokens=[start for start, _, _ in cached.values()],
            new_block_ids=[(blocks,) if blocks is not None else None for _, _, blocks in cached.values()],
        ),
        scheduled_spec_decode_tokens={name: [-1] * count for name, count in (drafts or {}).items()},
        num_scheduled_tokens={name: count for name, (_, count, _) in {**new, **cached}.items()},
    )


class Log:
    """A request log on disk, and its lines read back."""

    def __init__(self, folder: Path, *, speculative_tokens: int = 0, **settings: Any) -> None:
        self.path = folder / "requests.jsonl"
        self.rules = CaptureSettings(directory=folder, seed=0, **{"position_stride": 1, **settings})
        self.log = RequestLog(Journal(self.path), Sampler(self.rules), b"k" * 32, [BLOCK], speculative_tokens)

    def switch(self, sampling_id: int, **changes: Any) -> None:
        self.log.follow_sampling(Sampling(sampling_id, replace(self.rules, **changes)))

    def last_lines(self) -> dict[int, RequestRecord]:
        self.log.close()
        records = [unseal(line, RequestRecord) for line in self.path.read_text().splitlines()]
        return {record.request: record for record in records}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_a_request_is_numbered_at_its_arrival_and_closed_at_its_end(log: Log) -> None:
    first, second = request("a", 20), request("b", 5, labels=None)
    log.log.arrive(first)
    log.log.arrive(second)
    log.log.arrive(first)
    log.log.plan_step(step(new={"a": (0, 20, [3, 4]), "b": (0, 5, [5])}))
    log.log.plan_step(step(cached={"a": (20, 1, None)}))
    first.num_output_tokens = 2
    log.log.finish(first)
    records = log.last_lines()
    assert [records[n].status for n in (0, 1)] == ["length", "running"]
    assert (records[0].prompt_tokens, records[0].output_tokens, records[0].computed_tokens) == (20, 2, 21)
    assert (records[0].workload, records[1].workload) == ("chat", "unlabelled")
    assert records[1].client_id is None
    assert records[0].missing == ()


def test_chunked_prefill_extends_the_block_table(log: Log) -> None:
    log.log.arrive(request("a", 40))
    log.log.plan_step(step(new={"a": (0, 20, [3, 4])}))
    (planned,) = log.log.plan_step(step(cached={"a": (20, 20, [9])})).requests
    assert (planned.first, planned.end) == (20, 40)
    assert planned.blocks == ((1, (4, 9)),)


def test_prefix_cache_hits_are_missing_and_not_planned(log: Log) -> None:
    hit = request("a", 40, num_output_tokens=1)
    log.log.arrive(hit)
    (planned,) = log.log.plan_step(step(new={"a": (32, 8, [3, 4, 9])})).requests
    assert (planned.first, planned.end) == (32, 40)
    log.log.finish(hit)
    assert log.last_lines()[0].missing == ((0, 32),)


def test_a_resumed_request_gets_new_blocks_and_misses_nothing_that_was_seen_before(log: Log) -> None:
    preempted = request("a", 40, num_preemptions=1)
    log.log.arrive(preempted)
    log.log.plan_step(step(new={"a": (0, 40, [3, 4, 5])}))
    log.log.plan_step(step(cached={"a": (40, 1, None)}))
    resumed = step(cached={"a": (16, 26, [7, 8, 9])}, resumed=("a",))
    (planned,) = log.log.plan_step(resumed).requests
    assert planned.blocks == ((1, (8, 9)),)
    preempted.num_output_tokens = 3
    log.log.finish(preempted)
    record = log.last_lines()[0]
    assert (record.missing, record.preemptions, record.computed_tokens) == ((), 1, 42)


def test_a_token_that_an_asynchronous_scheduler_sent_too_many_is_not_counted(log: Log) -> None:
    stopped = request("a", 4, num_output_tokens=1)
    log.log.arrive(stopped)
    log.log.plan_step(step(new={"a": (0, 4, [3])}))
    log.log.plan_step(step(cached={"a": (4, 1, None)}))
    log.log.finish(stopped)
    assert log.last_lines()[0].computed_tokens == 4


def test_a_request_that_ends_before_it_was_scheduled_has_computed_nothing(log: Log) -> None:
    aborted = request("a", 4, get_finished_reason=lambda: "abort")
    log.log.arrive(aborted)
    log.log.finish(aborted)
    record = log.last_lines()[0]
    assert (record.status, record.computed_tokens, record.missing) == ("abort", 0, ())


def test_drafts_may_be_rejected_so_a_plan_reaches_back_and_may_fall_short(tmp_path: Path) -> None:
    log = Log(tmp_path, speculative_tokens=3)
    log.log.arrive(request("a", 20))
    log.log.plan_step(step(new={"a": (0, 20, [3, 4])}))
    plan = log.log.plan_step(step(cached={"a": (20, 4, None)}))
    assert plan.may_fall_short
    assert (plan.requests[0].first, plan.requests[0].end) == (14, 24)


def test_a_requests_end_says_how_many_drafts_were_proposed_and_accepted(tmp_path: Path) -> None:
    log = Log(tmp_path, speculative_tokens=3)
    one, other = request("a", 20), request("b", 8)
    log.log.arrive(one)
    log.log.arrive(other)
    log.log.plan_step(step(new={"a": (0, 20, [3, 4]), "b": (0, 8, [5])}))
    one.num_output_tokens, one.num_tokens = 1, 21
    log.log.plan_step(step(cached={"a": (20, 4, None)}, drafts={"a": 3}))
    one.num_output_tokens = 3  # one draft, and the token that every step gives
    other.num_output_tokens = 1
    log.log.finish(one)
    log.log.finish(other)
    records = log.last_lines()
    assert [(records[n].drafts_proposed, records[n].drafts_accepted) for n in (0, 1)] == [(3, 1), (0, 0)]
    assert records[0].computed_tokens == 22  # 20 and 21 stand; what the step drafted for 22 and 23 is beyond


@pytest.mark.parametrize("stride", [1, 4])
def test_a_rejected_drafts_position_is_told_where_its_row_would_be_stored(
    tmp_path: Path, stride: int
) -> None:
    log = Log(tmp_path, speculative_tokens=3, position_stride=stride)
    one = request("a", 20)
    log.log.arrive(one)
    log.log.plan_step(step(new={"a": (0, 20, [3, 4])}))
    for start, came in [(20, 1), (21, 1), (25, 4)]:  # what the step before gave, then three drafts more
        one.num_output_tokens, one.num_tokens = one.num_output_tokens + came, one.num_tokens + came
        log.log.plan_step(step(cached={"a": (start, 4, None)}, drafts={"a": 3}))
    one.num_output_tokens, one.num_tokens = one.num_output_tokens + 2, one.num_tokens + 2
    log.log.finish(one)
    record = log.last_lines()[0]
    # Step 1 runs 20 to 23 and keeps 20, step 2 runs 21 to 24 and keeps all, step 3 keeps 25 and 26.
    told = ((21, 1), (22, 1), (23, 1))
    assert record.computed_tokens == 27
    assert record.rejected == tuple(pair for pair in told if pair[0] % stride == record.offset)


def test_without_speculative_decoding_nothing_is_said_of_drafts(log: Log) -> None:
    one = request("a", 4)
    log.log.arrive(one)
    log.log.plan_step(step(new={"a": (0, 4, [3])}))
    log.log.finish(one)
    assert (log.last_lines()[0].drafts_proposed, log.last_lines()[0].drafts_accepted) == (None, None)


def test_requests_that_the_rules_leave_out_are_recorded_and_not_planned(tmp_path: Path) -> None:
    log = Log(tmp_path, workloads=("code",))
    other = request("a", 20)
    log.log.arrive(other)
    assert log.log.plan_step(step(new={"a": (0, 20, [3, 4])})).requests == ()
    log.log.finish(other)
    assert not log.last_lines()[0].sampled


def test_a_request_whose_prompt_may_grow_is_not_sampled(log: Log) -> None:
    log.log.arrive(request("a", 20, resumable=True))
    assert log.log.plan_step(step(new={"a": (0, 20, [3, 4])})).requests == ()


def test_prompts_given_as_embeddings_have_no_prompt_hash(log: Log) -> None:
    log.log.arrive(request("a", 20, prompt_token_ids=None))
    assert log.last_lines()[0].prompt_hash is None


def test_new_rules_hold_for_requests_that_arrive_after_them(log: Log) -> None:
    early, late = request("a", 20), request("b", 20)
    log.log.arrive(early)
    log.switch(1, position_stride=4, byte_budget=1000)
    log.log.arrive(late)
    plan = log.log.plan_step(step(new={"a": (0, 20, [3, 4]), "b": (0, 20, [5, 6])}))
    assert [(planned.sampling_id, planned.stride) for planned in plan.requests] == [(0, 1), (1, 4)]
    assert (plan.sampling_id, plan.byte_budget) == (1, 1000)
    early.num_output_tokens = late.num_output_tokens = 1
    log.log.finish(early)
    log.log.finish(late)
    records = log.last_lines()
    assert [records[n].sampling_id for n in (0, 1)] == [0, 1]
    assert [(records[n].missing, records[n].switched_off) for n in (0, 1)] == [((), ())] * 2


def test_a_request_that_runs_when_capture_is_switched_off_is_marked_from_there_on(log: Log) -> None:
    cut = request("a", 40, num_output_tokens=3)
    log.log.arrive(cut)
    log.log.plan_step(step(new={"a": (16, 14, [3, 4])}))
    log.switch(1, enabled=False)
    assert log.log.plan_step(step(cached={"a": (30, 10, [5])})).requests == ()
    log.switch(2)
    assert log.log.plan_step(step(cached={"a": (40, 1, None)})).requests == ()
    log.log.plan_step(step(cached={"a": (41, 1, None)}))
    log.log.finish(cut)
    record = log.last_lines()[0]
    assert record.sampled
    assert record.computed_tokens == 42
    assert record.missing == ((0, 16), (30, 42))
    assert record.switched_off == ((30, 42),)


def test_a_request_that_was_cut_and_computed_nothing_more_is_complete(log: Log) -> None:
    ended = request("a", 20, num_output_tokens=1)
    log.log.arrive(ended)
    log.log.plan_step(step(new={"a": (0, 20, [3, 4])}))
    log.switch(1, enabled=False)
    log.log.finish(ended)
    assert (log.last_lines()[0].missing, log.last_lines()[0].switched_off) == ((), ())


def test_while_capture_is_off_requests_are_neither_recorded_nor_taken_up_later(tmp_path: Path) -> None:
    log = Log(tmp_path, enabled=False)
    passed, later = request("a", 20, num_output_tokens=2), request("b", 5)
    log.log.arrive(passed)
    assert log.log.plan_step(step(new={"a": (0, 20, [3, 4])})).requests == ()
    log.switch(1, enabled=True)
    log.log.arrive(passed)  # vLLM tells of a request again when it resumes after a preemption
    log.log.arrive(later)
    (planned,) = log.log.plan_step(step(new={"b": (0, 5, [5])}, cached={"a": (20, 1, None)})).requests
    assert (planned.request, planned.sampling_id) == (0, 1)
    log.log.finish(passed)
    assert [(number, record.prompt_tokens) for number, record in log.last_lines().items()] == [(0, 5)]
    assert log.log._passed_over == set()


def test_rejected_drafts_before_a_switch_off_are_still_overwritten(tmp_path: Path) -> None:
    log = Log(tmp_path, speculative_tokens=3)
    drafted = request("a", 20, num_output_tokens=8)
    log.log.arrive(drafted)
    log.log.plan_step(step(new={"a": (0, 20, [3, 4])}))
    log.log.plan_step(step(cached={"a": (20, 4, None)}))  # 20 is a token, 21 to 23 are drafts
    log.switch(1, enabled=False)
    (planned,) = log.log.plan_step(step(cached={"a": (21, 4, None)})).requests
    assert (planned.first, planned.end) == (15, 24)
    for start in (25, 29, 30):
        last = log.log.plan_step(step(cached={"a": (start, 4, None)}))
    assert last.requests == ()
    log.log.finish(drafted)
    assert log.last_lines()[0].switched_off == ((24, 27),)


def test_after_a_step_that_cannot_be_read_no_request_that_ran_is_called_complete(log: Log) -> None:
    first = request("a", 20)
    log.log.arrive(first)
    log.log.plan_step(step(new={"a": (0, 20, [3, 4])}))
    unreadable = step(cached={"a": (20, 1, None)})
    del unreadable.scheduled_cached_reqs.num_computed_tokens
    with pytest.raises(AttributeError):
        log.log.plan_step(unreadable)
    assert log.log.plan_step(step(cached={"a": (21, 1, None)})).requests == ()
    first.num_output_tokens = 3
    log.log.finish(first)
    later = request("b", 5)
    log.log.arrive(later)
    assert len(log.log.plan_step(step(new={"b": (0, 5, [5])})).requests) == 1
    log.log.finish(later)
    assert {number: record.status for number, record in log.last_lines().items()} == {
        0: "running",
        1: "length",
    }


def test_with_stored_queries_the_first_four_positions_are_kept_and_every_fourth_row_has_one(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path, position_stride=2, queries="stored")
    log.log.arrive(request("a", 20))
    (planned,) = log.log.plan_step(step(new={"a": (0, 20, [3, 4])})).requests
    offset = planned.first
    assert planned.kept == (0, 4)
    assert planned.queries == tuple(range(offset, 20, 8))
    assert not log.last_lines()[0].is_probe


def test_of_a_probe_every_position_is_kept_and_its_record_says_where_queries_were_asked_for(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path, position_stride=16, queries="probe", probe_requests=1)
    log.log.arrive(request("a", 40))
    log.log.arrive(request("b", 40))
    plan = log.log.plan_step(step(new={"a": (0, 30, [3, 4]), "b": (0, 30, [5, 6])}))
    probe = plan.requests[0]
    assert probe.kept == (0, 30)
    assert [planned.kept for planned in plan.requests[1:]] == [(0, 0)]
    (decoded,) = log.log.plan_step(step(cached={"a": (30, 11, [7])})).requests
    assert decoded.kept == (30, 41)
    records = log.last_lines()
    assert (records[0].is_probe, records[1].is_probe) == (True, False)
    assert records[1].query_positions == ()
    asked = [position for position in records[0].query_positions if position < 41]
    assert [*probe.queries, *decoded.queries] == asked
    assert 40 in asked  # what the first generated token asks


def test_without_queries_nothing_is_kept_beside_the_sample(log: Log) -> None:
    log.log.arrive(request("a", 20))
    (planned,) = log.log.plan_step(step(new={"a": (0, 20, [3, 4])})).requests
    assert (planned.kept, planned.queries) == ((0, 0), ())


@pytest.mark.parametrize(
    ("kept", "expected"), [(True, hash_external_id(b"k" * 32, "ticket-17")), (False, None)]
)
def test_the_front_ends_id_is_kept_as_a_keyed_hash_unless_one_setting_says_no(
    tmp_path: Path, kept: bool, expected: str | None
) -> None:
    log = Log(tmp_path, external_ids=kept)
    for name in ("chatcmpl-ticket-17-1f2e3d4c", "0-1f2e3d4c"):
        log.log.arrive(request(name, 4))
    found = log.last_lines()
    assert [found[n].external_id for n in (0, 1)] == [expected, None]
    assert "ticket-17" not in log.path.read_text()
