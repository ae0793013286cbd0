"""How many drafts of one request were verified, and how many of them became output. It needs no vllm.

A connector is not told what a step's sampling gave. But a step that samples gives one token and one more for
each draft that it accepts, so the scheduler's own counts tell: tokens come, steps are known. With
asynchronous scheduling some steps are still on their way when the next is planned; each holds a placeholder
for every token that it may give (`Request.num_output_placeholders`), which tells which.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class DraftCount:
    """Follows one request from step to step.

    Steps whose outcome cannot be told (they were on their way when the request was aborted or preempted)
    are in neither count.
    """

    def __init__(self, request: Any) -> None:
        self.proposed = 0
        """Drafts that the model ran over in a step whose tokens came back."""
        self.accepted = 0
        """Those of them that are output tokens; what was cut at a stop is not."""
        self._request = request
        self._num_outputs = request.num_output_tokens
        self._on_their_way: deque[int] = deque()
        """Drafts of each step that samples and whose tokens have not come back, in order."""

    def plan(self, end: int, num_drafts: int) -> None:
        """Note a step that runs the request up to position `end`; it samples where no known token is left."""
        self.settle()
        request = self._request
        if end >= request.num_tokens + getattr(request, "num_output_placeholders", 0):
            self._on_their_way.append(num_drafts)

    def settle(self) -> None:
        """Count the steps that came back since the last call."""
        came, self._num_outputs = (
            self._request.num_output_tokens - self._num_outputs,
            self._request.num_output_tokens,
        )
        pending, placeholders = self._on_their_way, getattr(self._request, "num_output_placeholders", 0)
        back: list[int] = []
        while pending and sum(1 + drafts for drafts in pending) > placeholders:
            back.append(pending.popleft())
        if len(back) <= came <= len(back) + sum(back):
            self.proposed += sum(back)
            self.accepted += came - len(back)
