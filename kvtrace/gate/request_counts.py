"""Clipped vectors of every head in every request under one candidate: what paired comparison needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.query import RunConnection

Head = tuple[int, int, str]

_COUNTS: Final = """
SELECT layer, kv_head, tensor, source, request, n, is_quantized, can_clip, clipped AS x
FROM request_vectors(chosen_tokens)
WHERE candidate = $candidate AND n > 0
ORDER BY layer, kv_head, tensor, source, request
"""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Weighted counts per head and request; a head without rows of a request has 0 vectors there."""

    heads: tuple[Head, ...]
    """(layer, kv_head, tensor)."""
    requests: tuple[tuple[str, int], ...]
    """(source, request)."""
    trials: NDArray[np.float64]
    """[heads, requests], vectors with a finite value."""
    events: NDArray[np.float64]
    """[heads, requests], clipped vectors; 0 where the head is not quantized."""
    is_quantized: NDArray[np.bool_]
    """[heads], in some trace."""
    can_clip: NDArray[np.bool_]
    """[heads], in some trace: has a scale, rather than one for every vector or none."""

    def of_tensor(self, tensor: str) -> NDArray[np.bool_]:
        """Return which heads are of `k` or `v`."""
        return np.array([head[2] == tensor for head in self.heads], dtype=bool)

    def pooled(self, tensor: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return events and trials per request, over all heads of `k` or `v`."""
        chosen = self.of_tensor(tensor)
        return self.events[chosen].sum(axis=0), self.trials[chosen].sum(axis=0)

    def pairs_with(self, other: RequestCounts) -> bool:
        """Return whether both hold the same vectors of the same requests."""
        return (
            self.heads == other.heads
            and self.requests == other.requests
            and bool(np.array_equal(self.trials, other.trials))
        )


def request_counts(connection: RunConnection, candidate: str) -> RequestCounts:
    """Return the counts of one valid candidate; connection: with the views and measures of queries/."""
    columns: dict[str, Any] = connection.execute(_COUNTS, {"candidate": candidate}).fetchnumpy()
    heads, head_index = _numbered(columns["layer"], columns["kv_head"], columns["tensor"])
    requests, request_index = _numbered(columns["source"], columns["request"])
    trials = np.zeros((len(heads), len(requests)))
    events = np.zeros_like(trials)
    trials[head_index, request_index] = columns["n"]
    events[head_index, request_index] = columns["x"]
    is_quantized = np.zeros(len(heads), dtype=bool)
    np.logical_or.at(is_quantized, head_index, columns["is_quantized"])
    can_clip = np.zeros(len(heads), dtype=bool)
    np.logical_or.at(can_clip, head_index, columns["can_clip"])
    return RequestCounts(
        heads=tuple((int(layer), int(head), str(tensor)) for layer, head, tensor in heads),
        requests=tuple((str(source), int(request)) for source, request in requests),
        trials=trials,
        events=events,
        is_quantized=is_quantized,
        can_clip=can_clip,
    )


def _numbered(*columns: NDArray[Any]) -> tuple[list[tuple[Any, ...]], NDArray[np.int64]]:
    """Return the distinct keys, sorted, and each row's place among them."""
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    distinct = sorted(set(keys))
    place = {key: index for index, key in enumerate(distinct)}
    return distinct, np.fromiter((place[key] for key in keys), dtype=np.int64, count=len(keys))
