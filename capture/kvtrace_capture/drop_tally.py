"""Counts rows that were sampled and are not stored, by request and reason."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from kvtrace.trace.format import DroppedRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

logger = logging.getLogger("kvtrace.capture")

Reason = Literal["budget", "queue_full", "write_failed", "hook_failed"]

_SECONDS_BETWEEN_LINES: Final = 5.0
"""A spent budget drops rows at every step: one line a request and pause, not one a step."""


class DropTally:
    """Adds counts up and passes them on now and then."""

    def __init__(self, pass_on: Callable[[DroppedRecord], None]) -> None:
        self._pass_on = pass_on
        self._counts: dict[tuple[int, Reason], int] = {}
        self._passed_on_at = time.monotonic()

    def add(self, requests: NDArray[np.int32], reason: Reason) -> None:
        """Count one row for each entry of `requests`."""
        numbers, counts = np.unique(requests, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._counts[number, reason] = self._counts.get((number, reason), 0) + count

    def pass_on_if_due(self) -> None:
        """Pass the counts on if the last time is a while ago."""
        if self._counts and time.monotonic() - self._passed_on_at > _SECONDS_BETWEEN_LINES:
            self.pass_on()

    def pass_on(self) -> None:
        """Pass the counts on and start again from zero."""
        for (request, reason), num_rows in self._counts.items():
            self._pass_on(DroppedRecord(request=request, num_rows=num_rows, reason=reason))
        self._counts.clear()
        self._passed_on_at = time.monotonic()


class RefusalLog:
    """Says once why rows are dropped before they are copied: a full queue, and each budget that is spent."""

    def __init__(self) -> None:
        self._is_full_logged = False
        self._budget_logged: int | None = None

    def log(self, reason: Reason, sampling_id: int, step_bytes: int, queue_bytes: int) -> None:
        """Log a step's refusal unless one like it was. What the writer's failure was, the writer has said."""
        if reason == "budget" and self._budget_logged != sampling_id:
            self._budget_logged = sampling_id
            logger.warning("kvtrace: the byte_budget of sampling %d is spent; rows are dropped", sampling_id)
        elif reason == "queue_full" and not self._is_full_logged:
            self._is_full_logged = True
            why = (
                f"one step's rows take {step_bytes:,} bytes, and queue_bytes is {queue_bytes:,}; raise it "
                "or position_stride"
                if step_bytes > queue_bytes
                else f"the writer is behind, and no more than queue_bytes = {queue_bytes:,} may wait for it"
            )
            logger.warning("kvtrace: rows are dropped (logged once): %s", why)
