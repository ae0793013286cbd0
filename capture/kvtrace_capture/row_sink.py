"""One store's end of a step: the rows that go to its writer, and those that are lost on the way, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace_capture.drop_tally import DropTally, Reason
from kvtrace_capture.writer import StepRows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from kvtrace.trace.attention_format import ResidualRecord
    from kvtrace_capture.gathered_rows import StoredBits
    from kvtrace_capture.step_plan import PlannedRows
    from kvtrace_capture.writer import TraceWriter


class RowSink:
    """Gives chosen rows to a store's writer."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._dropped = DropTally(writer.drop)

    @property
    def has_failed(self) -> bool:
        """Return whether the store takes nothing more."""
        return self._writer.failure is not None

    @property
    def refusal(self) -> Reason:
        """Return why the writer takes no rows, where it takes none."""
        return "write_failed" if self.has_failed else "queue_full"

    def store(
        self,
        step: int,
        planned: PlannedRows,
        chosen: NDArray[np.bool_],
        tensors: Callable[[], StoredBits],
    ) -> int | None:
        """Queue the chosen rows. Return None, or the bytes of rows that the writer did not take.

        chosen: [num_rows] of `planned`. tensors: makes their values, where there are rows.
        """
        if not chosen.any():
            return None
        rows = StepRows(
            request=planned.request[chosen],
            position=planned.position[chosen],
            sampling_id=planned.sampling_id[chosen],
            step=step,
            tensors=tensors(),
        )
        if self._writer.append(rows):
            return None
        self._dropped.add(rows.request, self.refusal)
        return rows.num_bytes

    def drop(self, planned: PlannedRows, chosen: NDArray[np.bool_], reason: Reason) -> None:
        """Count the chosen rows as lost."""
        if chosen.any():
            self._dropped.add(planned.request[chosen], reason)

    def pass_on_if_due(self) -> None:
        """Let the writer know what is lost, if the last time is a while ago."""
        self._dropped.pass_on_if_due()

    def note_residual(self, records: tuple[ResidualRecord, ...]) -> None:
        """Keep what attention adds to the residual stream, by layer."""
        self._writer.note_residual(records)

    def flush(self) -> None:
        """Wait until what was given so far is committed."""
        self._dropped.pass_on()
        self._writer.flush()

    def close(self) -> None:
        """Write what was given and the counts of lost rows, and close the store."""
        self._dropped.pass_on()
        self._writer.close()
