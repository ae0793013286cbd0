"""A small trace with queries: two dense requests in two layers, on two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.fabricate import fabricate_trace, request
from support.fabricate_queries import add_queries

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 48


def trace_with_queries(path: Path, **attention: Any) -> Path:
    """Write two requests of 48 tokens: 4 KV heads, 8 query heads, head_dim 8.

    attention: further fields of every layer's AttentionRecord.
    """
    random = np.random.default_rng(7)
    k_and_v = {(layer, t): random.normal(size=(2 * LENGTH, 4, 8)) for layer in range(2) for t in "kv"}
    grid = list(range(0, 2 * LENGTH, 4))
    rest = [row for row in range(2 * LENGTH) if row % 4]
    fabricate_trace(
        path,
        {key: values[grid] for key, values in k_and_v.items()},
        request_of_row=[row // LENGTH for row in grid],
        position_of_row=[row % LENGTH for row in grid],
        requests=[request(number, prompt_tokens=LENGTH) for number in range(2)],
        ranks=[(0, 1), (2, 3)],
    )
    asked = [5, 20, 33, 47]
    add_queries(
        path,
        {(layer, "q"): random.normal(size=(8, 8, 8)) for layer in range(2)},
        ([0] * 4 + [1] * 4, asked * 2),
        {key: values[rest] for key, values in k_and_v.items()},
        ([row // LENGTH for row in rest], [row % LENGTH for row in rest]),
        heads_a_kv_head=2,
        **attention,
    )
    return path
