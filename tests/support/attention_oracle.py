"""Attention over captured queries, keys and values as the textbook has it, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.queries import AttentionValues


def attention_output(values: AttentionValues) -> NDArray[np.float64]:
    """Return [num_queries, query_head, head_dim_v] from the exact q, k and v."""
    return attention(
        *(x.astype(np.float64) for x in (values.q, values.k, values.v)),
        query_position=values.query_position,
        key_position=values.key_position,
        kv_head_of=values.layer.kv_head_of,
        scale=values.layer.softmax_scale,
        window=values.layer.sliding_window,
        soft_cap=values.layer.soft_cap,
        sinks=values.layer.sinks,
    )[0]


def attention(
    q: NDArray[np.float64],
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    *,
    query_position: NDArray[np.int32],
    key_position: NDArray[np.int32],
    kv_head_of: tuple[int, ...],
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: tuple[float, ...] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return output, probabilities and logits, [query, query_head, …]; of unseen keys 0 and -inf."""
    outputs, weights, logits = np.zeros((*q.shape[:2], v.shape[2])), [], []
    for query in range(len(q)):
        for head, kv_head in enumerate(kv_head_of):
            s = scale * k[:, kv_head] @ q[query, head]
            if soft_cap is not None:
                s = soft_cap * np.tanh(s / soft_cap)
            distance = query_position[query] - key_position
            s = np.where((distance < 0) | (distance >= (window or np.inf)), -np.inf, s)
            sink = -np.inf if sinks is None else sinks[head]
            top = max(s.max(), sink)
            p = np.exp(s - top)
            p /= p.sum() + np.exp(sink - top)
            outputs[query, head] = p @ v[:, kv_head]
            weights.append(p)
            logits.append(s)
    shape = (*q.shape[:2], len(k))
    return outputs, np.reshape(weights, shape), np.reshape(logits, shape)
