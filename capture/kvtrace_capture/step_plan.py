"""What the scheduler tells the workers for one step: the positions to capture, and the blocks they are in.

A worker finds a token by the slot its cache write goes to (slot = block · block_size + place in the block),
never by its place in the batch: model runners order batches as they like, and with asynchronous speculative
decoding the positions a worker computes may lie before the ones the scheduler counted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """The sampled positions that one request may compute in this step."""

    request: int
    sampling_id: int
    first: int
    """The first sampled position."""
    end: int
    """One past the last position that may be computed."""
    stride: int
    blocks: tuple[tuple[int, tuple[int, ...]], ...]
    """For each KV-cache group: the logical index of the first block, and the block ids from there on."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All sampled positions of one step; empty where none is scheduled."""

    step: int
    requests: tuple[PlannedRequest, ...] = ()
    may_fall_short: bool = False
    """True with speculative decoding: some planned positions may rightly not be computed."""


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """A plan spelled out, one entry a sampled token.

    request, position, sampling_id: [num_rows] int32. slots: for each KV-cache group [num_rows] int64.
    """

    request: NDArray[np.int32]
    position: NDArray[np.int32]
    sampling_id: NDArray[np.int32]
    slots: tuple[NDArray[np.int64], ...] = field(default=())


def plan_request(
    *,
    request: int,
    sampling_id: int,
    stride: int,
    offset: int,
    start: int,
    end: int,
    blocks: Sequence[Sequence[int]],
    block_sizes: Sequence[int],
) -> PlannedRequest | None:
    """Return the plan for positions [start, end) of one request, or None where none of them is sampled.

    blocks: for each KV-cache group the request's whole block table.

    >>> plan_request(request=3, sampling_id=0, stride=4, offset=1, start=30, end=40, blocks=[[7, 9, 5]],
    ...              block_sizes=[16]).blocks
    ((2, (5,)),)
    """
    first = start + (offset - start) % stride
    if first >= end:
        return None
    tables = []
    for table, block_size in zip(blocks, block_sizes, strict=True):
        lowest, highest = first // block_size, (end - 1) // block_size
        tables.append((lowest, tuple(table[lowest : highest + 1])))
    return PlannedRequest(request, sampling_id, first, end, stride, tuple(tables))


def spell_out(plan: StepPlan, block_sizes: Sequence[int]) -> PlannedRows:
    """Return every planned token with its slot in each KV-cache group.

    A position whose block is not there yet gets slot −1, which no cache write has.
    """
    positions = [np.arange(r.first, r.end, r.stride, dtype=np.int64) for r in plan.requests]
    lengths = [len(p) for p in positions]

    def column(values: list[int]) -> NDArray[np.int32]:
        return np.repeat(np.asarray(values, dtype=np.int32), lengths)

    slots = tuple(
        np.concatenate(
            [_slots(p, *r.blocks[group], size) for p, r in zip(positions, plan.requests, strict=True)]
            or [np.empty(0, dtype=np.int64)]
        )
        for group, size in enumerate(block_sizes)
    )
    return PlannedRows(
        request=column([r.request for r in plan.requests]),
        position=np.concatenate(positions or [np.empty(0, dtype=np.int64)]).astype(np.int32),
        sampling_id=column([r.sampling_id for r in plan.requests]),
        slots=slots,
    )


def _slots(
    position: NDArray[np.int64], first_block: int, block_ids: tuple[int, ...], block_size: int
) -> NDArray[np.int64]:
    ids = np.asarray((*block_ids, -1), dtype=np.int64)
    block = ids[np.minimum(position // block_size - first_block, len(block_ids))]
    return np.where(block < 0, -1, block * block_size + position % block_size)
