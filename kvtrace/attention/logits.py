"""Attention of a few queries over many keys, as the engine computes it, in blocks that stay in the cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from kvtrace.errors import UnsupportedAttentionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from kvtrace.trace.queries import AttentionLayer

UNSEEN: Final = -1e30
"""A logit of a key that is not seen; its difference to another of its kind is 0 and not NaN."""
_LEAST_EXPONENT: Final = -60.0
"""exp of less counts as this, 9e-27 of the largest: nothing beside float32's 6e-8. Results near or below its
smallest normal number would take a CPU many times longer."""
_BLOCK_BYTES: Final = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Of one block's logits over all query heads: what an L3 cache holds, or what fills a GPU."""
_FEWEST, _MOST = 4, 16
"""Queries in a block, whatever the keys."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some queries and the keys that any of them sees."""

    queries: slice
    keys: slice
    masked: slice
    """Which of `keys`, counted from its start, are not seen by every query."""
    mask: Tensor | None
    """[query, masked key] float32, 0 where a key is seen and `UNSEEN` where not; None: all are."""


def require_replayable(layer: AttentionLayer) -> None:
    """Raise UnsupportedAttentionError, naming the layer, where what shapes its logits is not recorded."""
    if layer.not_replayable:
        raise UnsupportedAttentionError(
            f"layer {layer.index} ({layer.name}) cannot be replayed: its attention uses "
            f"{', '.join(layer.not_replayable)}, which the trace does not hold; leave the layer out"
        )
    readers = Counter(layer.kv_head_of)
    if set(readers) != set(range(len(layer.kv_heads))) or len(set(readers.values())) != 1:
        raise UnsupportedAttentionError(
            f"layer {layer.index} ({layer.name}) cannot be replayed: its KV heads are not read by "
            "equally many query heads each; are the queries of every rank there?"
        )


def blocks(
    query_position: Tensor, key_position: Tensor, window: int | None, num_heads: int
) -> Iterator[Block]:
    """Yield blocks of queries.

    query_position, key_position: [num_queries], [num_keys], ascending; each query sees a key at least.
    window: a query at p sees the keys in (p − window, p]; None: all up to p.
    """
    device = key_position.device
    most = _BLOCK_BYTES[device.type] // (4 * num_heads * max(len(key_position), 1))
    size = min(max(most, _FEWEST), _MOST)
    until = torch.searchsorted(key_position, query_position, right=True)
    since = torch.zeros_like(until)
    if window is not None:
        since = torch.searchsorted(key_position, query_position - window, right=True)
    first, last = since.tolist(), until.tolist()
    for start in range(0, len(query_position), size):
        queries = slice(start, min(start + size, len(query_position)))
        keys = slice(first[start], last[queries.stop - 1])
        whole = last[start] if window is None else keys.start
        masked = slice(whole - keys.start, keys.stop - keys.start)
        mask = None
        if whole < keys.stop:
            at = torch.arange(whole, keys.stop, device=device)
            seen = (at >= since[queries, None]) & (at < until[queries, None])
            mask = torch.where(seen, 0.0, UNSEEN)
        yield Block(queries, keys, masked, mask)


def logits(q: Tensor, k: Tensor, block: Block, layer: AttentionLayer) -> Tensor:
    """Return the logits of one block, [kv_head, group · query, key] float32, as the softmax takes them.

    q: [kv_head, group, query, head_dim], multiplied by the softmax scale. k: [kv_head, key, head_dim].
    """
    kv_heads, group, num_queries, head_dim = q.shape
    rows = q.reshape(kv_heads, group * num_queries, head_dim)
    s = torch.bmm(rows, k[:, block.keys].transpose(1, 2))
    if layer.soft_cap is not None:
        s.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
    if block.mask is not None:
        s.view(kv_heads, group, num_queries, -1)[..., block.masked].add_(block.mask)
    return s


def exponentials(s: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(s − m), their sums and m: [row, key] in the place of `s`, [row, 1], [row, 1].

    s: [kv_head, row, key]; overwritten. sinks: [kv_head, row, 1], logits without a value; they count in sums.
    """
    top = s.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    e = s.sub_(top).clamp_(min=_LEAST_EXPONENT).exp_()
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - top).exp()
    return e, total, top
