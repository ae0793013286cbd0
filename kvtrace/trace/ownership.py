"""Which rank a KV head is read from, where several hold it (more ranks than KV heads)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.trace.reader import Trace
    from kvtrace.trace.store import RankStore


class HeadOwners:
    """The owner of every (layer, KV head): the first rank that holds it. Its rows alone are counted."""

    def __init__(self, trace: Trace) -> None:
        self._owner: dict[tuple[int, int], int] = {}
        for store in trace.ranks:
            for layer in store.rank.layers:
                for head in layer.kv_heads:
                    self._owner.setdefault((layer.index, head), store.rank.rank)

    def owned_axes(self, store: RankStore, layer: int, kv_heads: tuple[int, ...]) -> list[int]:
        """Return the places in `kv_heads`, a layer's heads on this rank, that the rank owns."""
        rank = store.rank.rank
        return [axis for axis, head in enumerate(kv_heads) if self._owner[layer, head] == rank]
