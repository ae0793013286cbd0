"""What becomes of one request's drafts: how many were accepted, and which rows hold rejected ones.

It needs no vllm. A connector is not told what a step's sampling gave. But a step that samples gives one token
and one more for each draft that it accepts, so the scheduler's own counts tell: tokens come, steps are known.
With asynchronous scheduling some steps are still on their way when the next is planned; each holds a
placeholder for every token that it may give (`Request.num_output_placeholders`), which tells which.
A look is taken between any two that come back; where two do at once, it is not told which of them rejected a
draft that the other replaced.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    end: int
    """One past the last position that it may compute."""
    num_drafts: int


class DraftCount:
    """Follows one request from step to step.

    request: vLLM's. is_stored: whether a position's row is captured.
    """

    def __init__(self, request: Any, is_stored: Callable[[int], bool] = lambda _: True) -> None:
        self.proposed = 0
        """Drafts that the model ran over in a step whose tokens came back."""
        self.accepted = 0
        """Those of them that are output tokens; what was cut at a stop is not. Steps whose outcome cannot be
        told, as they were on their way when the request was aborted or preempted, are in neither count."""
        self.rejected: dict[int, int] = {}
        """Stored position → the last step known to have computed a rejected draft there. Its row, and any
        earlier one, is not the token's; a later step computes it again, but that one's row may be lost."""
        self._request = request
        self._is_stored = is_stored
        self._num_outputs = request.num_output_tokens
        self._on_their_way: deque[_Step] = deque()
        """Steps that sample and whose tokens have not come back, in order."""

    def plan(self, step: int, end: int, num_drafts: int) -> None:
        """Note a step that runs the request up to position `end`; it samples where no known token is left."""
        self.settle()
        request = self._request
        if end >= request.num_tokens + getattr(request, "num_output_placeholders", 0):
            self._on_their_way.append(_Step(step, end, num_drafts))

    def look(self) -> None:
        """Take in what came back, if anything: between any two steps, so that they are told apart."""
        if self._request.num_output_tokens != self._num_outputs:
            self.settle()

    def settle(self) -> None:
        """Take in the steps that came back since the last call."""
        request, pending = self._request, self._on_their_way
        came, self._num_outputs = request.num_output_tokens - self._num_outputs, request.num_output_tokens
        placeholders = getattr(request, "num_output_placeholders", 0)
        back: list[_Step] = []
        while pending and sum(1 + step.num_drafts for step in pending) > placeholders:
            back.append(pending.popleft())
        if not back:
            return
        num_drafts = sum(step.num_drafts for step in back)
        if len(back) <= came <= len(back) + num_drafts:
            self.proposed += num_drafts
            self.accepted += came - len(back)
        # The last known token has not been through the model yet: what is there, or after it, was a draft's.
        for position in range(request.num_tokens - 1, max(step.end for step in back)):
            if self._is_stored(position):
                self.rejected[position] = back[-1].number
