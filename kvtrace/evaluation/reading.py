"""Stream a trace's blocks, the next ones read and unpacked while the current one is worked on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.evaluation.in_order import worked_on
from kvtrace.trace.ownership import HeadOwners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.trace.reader import Block, Trace

    Progress = Callable[[int, int], None]
    """(blocks done, blocks in all)."""

_READ_THREADS: Final = 2
_BLOCKS_AHEAD: Final = 3


def read_blocks(trace: Trace, progress: Progress | None = None) -> Iterator[Block]:
    """Yield every stored block once, in file order; at most `_BLOCKS_AHEAD` + 1 are in memory.

    A KV head that several ranks hold (more ranks than heads) is taken from the first of them.
    Raises IntegrityError: a chunk is missing, cut or damaged.
    """
    refs, owners = trace.block_refs(), HeadOwners(trace)
    blocks = worked_on(lambda ref: ref.load(), refs, _READ_THREADS, _BLOCKS_AHEAD)
    for done, (ref, block) in enumerate(zip(refs, blocks, strict=True), start=1):
        owned = owners.owned_axes(ref.store, block.layer.index, block.kv_heads)
        if owned:
            yield _take_heads(block, owned)
        if progress:
            progress(done, len(refs))


def _take_heads(block: Block, axes: list[int]) -> Block:
    if len(axes) == len(block.kv_heads):
        return block
    heads = tuple(block.kv_heads[axis] for axis in axes)
    return replace(block, kv_heads=heads, values=block.values[:, axes])
