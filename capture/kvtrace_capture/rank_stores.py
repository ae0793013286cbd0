"""Makes the stores of one rank, and the recorder that fills them. It needs torch and no vllm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.trace.format import RankRecord, rank_directory
from kvtrace_capture.query_rows import QueryRows
from kvtrace_capture.queue_room import QueueRoom
from kvtrace_capture.recorder import StepRecorder
from kvtrace_capture.writer import CHUNK_BUFFER_BYTES, TraceWriter, rows_per_chunk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Protocol

    from kvtrace.trace.format import LayerRecord
    from kvtrace_capture.gathered_rows import HookedLayer, QueryLayer
    from kvtrace_capture.settings import CaptureSettings

    class Layer(Protocol):
        """An attention layer as the hooks found it."""

        @property
        def record(self) -> LayerRecord:
            """Return what the trace says of it."""

        @property
        def hooked(self) -> HookedLayer | None:
            """Return its K and V, where this rank stores them."""

        @property
        def queries(self) -> QueryLayer | None:
            """Return its queries, where they are captured."""


_BESIDE_BYTES: Final = CHUNK_BUFFER_BYTES // 2
"""Of the chunk buffer of each store that is there for attention alone."""


def make_recorder(
    trace: Path,
    rank: RankRecord,
    layers: Sequence[Layer],
    block_sizes: Sequence[int],
    settings: CaptureSettings,
) -> StepRecorder:
    """Create `rank-N.zarr`, and with queries the two stores beside it, in the directory `trace`.

    rank: what the first holds; its rows_per_chunk is chosen here. Raises FileExistsError: a store is there.
    """
    room = QueueRoom(settings.queue_bytes)

    def make_writer(record: RankRecord, buffer_bytes: int) -> TraceWriter:
        record = record.model_copy(update={"rows_per_chunk": rows_per_chunk(record, buffer_bytes)})
        return TraceWriter(
            trace / rank_directory(record.rank, record.holds),
            record,
            flush_seconds=settings.flush_seconds,
            room=room,
        )

    hooked = {layer.record.name: layer.hooked for layer in layers if layer.hooked is not None}
    asked = {layer.record.name: layer.queries for layer in layers if layer.queries is not None}
    writer = make_writer(rank, CHUNK_BUFFER_BYTES)
    if not asked:
        return StepRecorder(hooked, block_sizes, writer)
    with_queries = tuple(
        record.model_copy(update={"captured": record.name in asked}) for record in rank.layers
    )
    of_queries = rank.model_copy(
        update={"holds": "queries", "has_outputs": settings.queries == "probe", "layers": with_queries}
    )
    queries = make_writer(of_queries, _BESIDE_BYTES)
    context = make_writer(rank.model_copy(update={"holds": "context"}), _BESIDE_BYTES) if hooked else None
    return StepRecorder(hooked, block_sizes, writer, QueryRows(asked, queries, context))
