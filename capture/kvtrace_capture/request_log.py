"""The scheduler's side: numbers the requests, follows their blocks, plans each step, keeps `requests.jsonl`.

It only reads the scheduler's objects, by these attributes of vLLM's `Request` and `SchedulerOutput`;
nothing here imports vllm.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvtrace.trace.attention_format import FIRST_POSITIONS, queries_of_stored
from kvtrace.trace.format import RequestRecord, seal
from kvtrace.trace.request_ids import front_end_id
from kvtrace_capture.acceptance import DraftCount
from kvtrace_capture.position_ranges import gaps, joined
from kvtrace_capture.privacy import hash_client_id, hash_external_id, hash_prompt
from kvtrace_capture.step_plan import PlannedRequest, StepPlan, plan_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.trace.attention_format import QueryMode
    from kvtrace_capture.journal import Journal
    from kvtrace_capture.sampler import Sampler
    from kvtrace_capture.sampling_switch import Sampling

RUNNING = "running"
_ALL_POSITIONS = 2**31


@dataclass(slots=True)
class _Followed:
    """A request that has not finished."""

    record: RequestRecord
    """As it arrived."""
    stride: int
    queries: QueryMode
    """Of the rules it arrived under."""
    blocks: list[list[int]] = field(default_factory=list)
    computed: list[tuple[int, int]] = field(default_factory=list)
    """Disjoint position ranges that went to the workers, in order."""
    captured: list[tuple[int, int]] = field(default_factory=list)
    """Those of `computed` whose sampled positions were planned."""
    drafts: DraftCount | None = None
    """None without speculative decoding."""
    cut_at: int | None = None
    """Capture was switched off when so many positions were planned; it is not taken up again."""

    @property
    def keep_below(self) -> int:
        """K and V of all positions below are kept for attention."""
        if self.record.is_probe:
            return _ALL_POSITIONS
        return FIRST_POSITIONS if self.queries == "stored" else 0

    def is_stored(self, position: int) -> bool:
        """Return whether K and V of a position are kept, for the sample or for attention."""
        is_sampled = position % self.stride == self.record.offset
        return self.record.sampled and (is_sampled or position < self.keep_below)

    def queries_in(self, start: int, end: int) -> Sequence[int]:
        """Return the positions in [start, end) at which Q is captured."""
        if self.queries == "stored":
            return queries_of_stored(self.record.offset, self.stride, start, end)
        return self.record.query_positions


class RequestLog:
    """Follows every request from arrival to finish and plans what to capture of it.

    A request keeps the rules of its arrival until it ends, unless capture is switched off. One that arrives
    while it is off is not recorded and not taken up later: its beginning would be missing.
    """

    def __init__(
        self,
        journal: Journal,
        sampler: Sampler,
        key: bytes,
        block_sizes: Sequence[int],
        speculative_tokens: int = 0,
        *,
        randomized_ids: bool = True,
    ) -> None:
        self._journal = journal
        self._sampler = sampler
        self._key = key
        self._randomized_ids = randomized_ids
        self._block_sizes = block_sizes
        # A worker may stand this far behind the scheduler's count: two steps in flight, all drafts rejected.
        self._look_back = 2 * speculative_tokens
        self._followed: dict[str, _Followed] = {}
        self._passed_over: set[str] = set()
        """Unfinished requests that arrived while capture was off."""
        self._num_requests = 0
        self._step = -1

    def follow_sampling(self, sampling: Sampling) -> None:
        """Put rules in force for the requests to come; when they switch capture off, for running ones too."""
        if sampling.sampling_id == self._sampler.sampling_id:
            return
        self._sampler.change(sampling.settings, sampling.sampling_id)
        if not sampling.settings.enabled:
            for followed in self._followed.values():
                if followed.cut_at is None:
                    followed.cut_at = followed.captured[-1][1] if followed.captured else 0

    def arrive(self, request: Any) -> None:
        """Number a request and note its arrival; a known one is left alone."""
        if request.request_id in self._followed or request.request_id in self._passed_over:
            return
        if not self._sampler.settings.enabled:
            self._passed_over.add(request.request_id)
            return
        params = request.sampling_params
        labels = self._sampler.read_labels(params.extra_args if params is not None else None)
        choice = self._sampler.choose(labels)
        if request.resumable:  # its prompt grows later, so prefill and decode could not be told apart
            choice = replace(choice, sampled=False, offset=0, is_probe=False)
        token_ids = request.prompt_token_ids
        record = RequestRecord(
            request=self._num_requests,
            workload=labels.workload,
            client_id=hash_client_id(self._key, labels.client_id) if labels.client_id else None,
            external_id=self._external_id(request.request_id),
            prompt_hash=hash_prompt(self._key, token_ids) if token_ids is not None else None,
            sampled=choice.sampled,
            sampling_id=choice.sampling_id,
            offset=choice.offset,
            is_probe=choice.is_probe,
            query_positions=self._sampler.draw_probe_positions(request.num_prompt_tokens)
            if choice.is_probe
            else (),
            prompt_tokens=request.num_prompt_tokens,
            arrived_at=time.time(),
            status=RUNNING,
        )
        self._num_requests += 1
        followed = _Followed(record, choice.stride, self._sampler.settings.queries)
        if self._look_back:
            followed.drafts = DraftCount(request, followed.is_stored)
        self._followed[request.request_id] = followed
        self._journal.append(seal(record))

    def plan_step(self, scheduled: Any) -> StepPlan:
        """Return what the workers capture in the step that a `SchedulerOutput` describes.

        Whatever is raised: nobody then knows what this step computes of which request, so none that runs is
        followed to an end that would call it complete.
        """
        try:
            return self._plan_step(scheduled)
        except Exception:
            self._passed_over.update(self._followed)
            self._followed.clear()
            raise

    def close(self) -> None:
        """Write what is queued. Requests that still run keep the line of their arrival."""
        self._journal.close()

    def _plan_step(self, scheduled: Any) -> StepPlan:
        self._step += 1
        planned: list[PlannedRequest] = []
        for running in self._followed.values():
            if running.drafts is not None:
                running.drafts.look()  # of requests that wait for their last tokens too
        for new in scheduled.scheduled_new_reqs:
            if (followed := self._followed.get(new.req_id)) is not None:
                followed.blocks = [list(ids) for ids in new.block_ids]
                self._plan(followed, new.req_id, new.num_computed_tokens, scheduled, planned)
        cached = scheduled.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for request_id, start, new_blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            if (followed := self._followed.get(request_id)) is None:
                continue
            if request_id in resumed:
                followed.blocks = [list(ids) for ids in new_blocks]
            elif new_blocks is not None:
                for table, ids in zip(followed.blocks, new_blocks, strict=True):
                    table.extend(ids)
            self._plan(followed, request_id, start, scheduled, planned)
        return StepPlan(
            self._step,
            tuple(planned),
            may_fall_short=self._look_back > 0,
            sampling_id=self._sampler.sampling_id,
            byte_budget=self._sampler.settings.byte_budget,
            num_tokens=sum(scheduled.num_scheduled_tokens.values()),
        )

    def finish(self, request: Any) -> None:
        """Write the request's last line and forget it."""
        self.arrive(request)
        if request.request_id in self._passed_over:
            self._passed_over.remove(request.request_id)
            return
        followed = self._followed.pop(request.request_id)
        # The last output token is never fed back, though an asynchronous scheduler may have sent it to a
        # worker before it knew that it was the last.
        record = followed.record
        fed = record.prompt_tokens + max(request.num_output_tokens - 1, 0)
        computed = min(followed.computed[-1][1] if followed.computed else 0, fed)
        reason = request.get_finished_reason()
        ended = {
            "status": str(reason) if reason is not None else str(request.status).lower(),
            "output_tokens": request.num_output_tokens,
            "computed_tokens": computed,
            "missing": gaps(followed.captured if record.sampled else followed.computed, computed),
            "switched_off": _switched_off(followed, computed),
            "preemptions": request.num_preemptions,
        }
        if followed.drafts is not None:
            followed.drafts.settle()
            ended["drafts_proposed"] = followed.drafts.proposed
            ended["drafts_accepted"] = followed.drafts.accepted
            rejected = sorted(followed.drafts.rejected.items())
            ended["rejected"] = tuple((position, step) for position, step in rejected if position < computed)
        self._journal.append(seal(record.model_copy(update=ended)))

    def _external_id(self, internal: str) -> str | None:
        if not self._sampler.settings.external_ids:
            return None
        found = front_end_id(internal, is_randomized=self._randomized_ids)
        return None if found is None else hash_external_id(self._key, found)

    def _plan(
        self, followed: _Followed, request_id: str, start: int, scheduled: Any, planned: list[PlannedRequest]
    ) -> None:
        end = start + scheduled.num_scheduled_tokens[request_id]
        if followed.drafts is not None:
            followed.drafts.plan(
                self._step, end, len(scheduled.scheduled_spec_decode_tokens.get(request_id, ()))
            )
        followed.computed = joined(followed.computed, (start, end))
        if not followed.record.sampled:
            return
        if followed.cut_at is not None:
            if not self._look_back:
                return
            end = min(end, followed.cut_at)  # drafts up to there may have been rejected: the tokens follow
        else:
            followed.captured = joined(followed.captured, (start, end))
        start = max(start - self._look_back, 0)
        plan = plan_request(
            request=followed.record.request,
            sampling_id=followed.record.sampling_id,
            stride=followed.stride,
            offset=followed.record.offset,
            start=start,
            end=end,
            blocks=followed.blocks,
            block_sizes=self._block_sizes,
            keep_below=followed.keep_below,
            queries=followed.queries_in(start, end),
        )
        if plan is not None:
            planned.append(plan)


def _switched_off(followed: _Followed, end: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of [0, end) that were computed and, since capture was off, not captured."""
    if followed.cut_at is None or not followed.record.sampled:
        return ()
    explained = followed.captured
    for gap in gaps(followed.computed, end):
        explained = joined(explained, gap)
    return gaps(explained, end)
