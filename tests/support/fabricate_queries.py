"""Queries for a fabricated trace: the stores beside its ranks' own, written by the plug-in's own writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from kvtrace_capture.writer import StepRows, TraceWriter

from kvtrace.trace.attention_format import AttentionRecord
from kvtrace.trace.format import RANK_FILE, RankRecord, rank_directory, unseal
from support.fabricate import bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Rows = tuple["Sequence[int]", "Sequence[int]"]
"""(request, position) of each row."""


def add_queries(
    path: Path,
    queries: Mapping[tuple[int, str], NDArray[Any]],
    query_rows: Rows,
    context: Mapping[tuple[int, str], NDArray[Any]],
    context_rows: Rows,
    *,
    heads_a_kv_head: int = 1,
    dropped: Mapping[int, Sequence[int]] | None = None,
    **attention: Any,
) -> None:
    """Write `queries-N.zarr` and `context-N.zarr` for each rank of the trace in `path`.

    queries: (layer, "q" | "o") → [row, query_head, head_dim]. context: (layer, "k" | "v") → as the trace's.
    attention: further fields of every layer's AttentionRecord. dropped: rank → query rows that it lacks.
    """
    for store in sorted(path.glob("rank-*.zarr")):
        rank = unseal((store / RANK_FILE).read_text(), RankRecord)
        kv_heads = rank.layers[0].kv_heads
        heads = [kv * heads_a_kv_head + n for kv in kv_heads for n in range(heads_a_kv_head)]
        record = AttentionRecord(
            query_heads=tuple(heads),
            kv_head_of=tuple(head // heads_a_kv_head for head in heads),
            **{"softmax_scale": rank.layers[0].head_dim_k ** -0.5} | attention,
        )
        layers = tuple(layer.model_copy(update={"attention": record}) for layer in rank.layers)
        missing = set((dropped or {}).get(rank.rank, ()))
        kept = [row for row in range(len(query_rows[0])) if row not in missing]
        has_outputs = any(tensor == "o" for _, tensor in queries)
        for update, tensors, rows, chosen, axis in (
            (
                {"holds": "queries", "layers": layers, "has_outputs": has_outputs},
                queries,
                query_rows,
                kept,
                heads,
            ),
            ({"holds": "context"}, context, context_rows, range(len(context_rows[0])), kv_heads),
        ):
            of_store = rank.model_copy(update=update)
            writer = TraceWriter(
                path / rank_directory(rank.rank, of_store.holds), of_store, flush_seconds=3600
            )
            request, position = (np.array(column, dtype=np.int32)[list(chosen)] for column in rows)
            if len(request):
                assert writer.append(
                    StepRows(
                        request=request,
                        position=position,
                        sampling_id=np.zeros(len(request), np.int32),
                        step=0,
                        tensors={
                            key: bits(values[np.ix_(list(chosen), list(axis))], layers[0].dtype)
                            for key, values in tensors.items()
                        },
                    )
                )
            writer.close()
            assert writer.failure is None
