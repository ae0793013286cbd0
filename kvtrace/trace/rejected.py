"""Rows of rejected drafts that no later row replaces.

With speculative decoding the model runs over drafts before it is known which are right. A rejected one's row
is followed by that of the token that came instead, and the last write counts. Where that row was dropped, or
lost with the engine, the draft's must not stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.line_records import RequestRecord
    from kvtrace.trace.model_record import EngineRecord


def most_drafts(engine: EngineRecord) -> int:
    """Return how many positions of a running request may hold drafts: those of two steps on their way."""
    speculative = engine.settings.get("speculative_config")
    count = speculative.get("num_speculative_tokens") if isinstance(speculative, dict) else None
    return 2 * count if isinstance(count, int) and 0 < count <= 1 << 16 else 0


def of_rejected_drafts(
    rows: dict[str, NDArray[Any]], requests: dict[int, RequestRecord], num_drafts: int
) -> NDArray[np.bool_]:
    """Mark the rows that hold a rejected draft, or may: [num_rows].

    rows: a store's columns. num_drafts: `most_drafts` of the engine. Of a finished request its record tells
    (`RequestRecord.rejected`, since format 1.4). Of one without an end record the generated positions that
    two steps may have drafted last are marked, counted back from its last row.
    """
    marked = np.zeros(len(rows["request"]), dtype=bool)
    told = sorted(
        (number << 32 | position, step)
        for number, record in requests.items()
        for position, step in record.rejected
    )
    if told:
        keys, steps = (np.array(column, dtype=np.int64) for column in zip(*told, strict=True))
        mine = rows["request"].astype(np.int64) << 32 | rows["position"]
        at = np.searchsorted(keys, mine).clip(max=len(keys) - 1)
        marked |= (keys[at] == mine) & (rows["step"] <= steps[at])
    if num_drafts:
        for number, record in requests.items():
            if record.status == "running" and record.sampled:
                own = np.flatnonzero(rows["request"] == number)
                position = rows["position"][own]
                first = max(record.prompt_tokens, position.max(initial=0) - num_drafts + 1)
                marked[own[position >= first]] = True
    return marked
