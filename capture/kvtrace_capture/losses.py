"""What a trace's writer lost and `dropped.jsonl` does not say yet. Nothing here imports vllm or torch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.trace.format import DroppedRecord

MAX_UNWRITTEN_LOSSES: Final = 65_536
"""While the disk takes nothing or hangs; beyond that many, lost rows are counted without their requests."""


class Losses:
    """Counts lost rows by request and reason, from any thread, without waiting for the disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unwritten: dict[tuple[int, str], DroppedRecord] = {}
        self._num_unnamed = 0
        self._num_uncommitted = 0

    def __bool__(self) -> bool:
        """Return whether there is something to write."""
        return bool(self._unwritten) or self._num_uncommitted > 0

    @property
    def num_rows(self) -> int:
        """Lost rows that no file counts."""
        with self._lock:
            unwritten = sum(lost.num_rows for lost in self._unwritten.values())
            return self._num_unnamed + self._num_uncommitted + unwritten

    def add(self, lost: DroppedRecord) -> None:
        """Count lost rows."""
        key = lost.request, lost.reason
        with self._lock:
            before = self._unwritten.get(key)
            if before is not None:
                lost = lost.model_copy(update={"num_rows": lost.num_rows + before.num_rows})
            elif len(self._unwritten) >= MAX_UNWRITTEN_LOSSES:
                self._num_unnamed += lost.num_rows
                return
            self._unwritten[key] = lost

    def write(self, append: Callable[[DroppedRecord], None], commit: Callable[[], None]) -> None:
        """Hand every count to `append`, then call `commit`. Where one raises, the rest stays for next time.

        For one thread: the writer's.
        """
        while (lost := self._pop()) is not None:
            try:
                append(lost)
            except BaseException:
                self.add(lost)
                raise
            self._num_uncommitted += lost.num_rows
        commit()
        self._num_uncommitted = 0

    def _pop(self) -> DroppedRecord | None:
        with self._lock:
            return self._unwritten.pop(next(iter(self._unwritten))) if self._unwritten else None
