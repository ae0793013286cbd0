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
    kept: tuple[int, int] = (0, 0)
    """Half-open range of which every position's K and V are kept for attention, sampled or not."""
    queries: tuple[int, ...] = ()
    """Positions at which Q is captured; each is sampled or in `kept`."""

    @property
    def positions(self) -> Sequence[int]:
        """Return the planned positions in order: the sampled ones and those of `kept`."""
        sampled = range(self.first, self.end, self.stride)
        return sorted({*sampled, *range(*self.kept)}) if self.kept[0] < self.kept[1] else sampled


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All sampled positions of one step; empty where none is scheduled."""

    step: int
    requests: tuple[PlannedRequest, ...] = ()
    may_fall_short: bool = False
    """True with speculative decoding: some planned positions may rightly not be computed."""
    sampling_id: int = 0
    """The rules in force, the same on every rank; requests of earlier rules may still be planned."""
    byte_budget: int | None = None
    """Bytes of raw K, V and Q that each rank may store from the first step of these rules on."""
    num_tokens: int = 0
    """All tokens that were scheduled, sampled or not."""


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """A plan row by row, one entry a planned token.

    request, position, sampling_id: [num_rows] int32. slots: for each KV-cache group [num_rows] int64.
    is_sampled: [num_rows] bool, False where K and V are kept for attention alone. has_query: [num_rows] bool.
    """

    request: NDArray[np.int32]
    position: NDArray[np.int32]
    sampling_id: NDArray[np.int32]
    is_sampled: NDArray[np.bool_]
    has_query: NDArray[np.bool_]
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
    keep_below: int = 0,
    queries: Sequence[int] = (),
) -> PlannedRequest | None:
    """Return the plan for positions [start, end) of one request, or None where none of them is captured.

    blocks: for each KV-cache group the request's whole block table. keep_below: K and V of all positions
    below it are kept. queries: positions at which Q is captured, in any range.

    >>> plan_request(request=3, sampling_id=0, stride=4, offset=1, start=30, end=40, blocks=[[7, 9, 5]],
    ...              block_sizes=[16]).blocks
    ((2, (5,)),)
    """
    first = start + (offset - start) % stride
    kept = (start, min(keep_below, end)) if start < keep_below else (0, 0)
    if first >= end and not kept[1]:
        return None
    tables = []
    for table, block_size in zip(blocks, block_sizes, strict=True):
        lowest = (min(first, start) if kept[1] else first) // block_size
        tables.append((lowest, tuple(table[lowest : (end - 1) // block_size + 1])))
    asked = tuple(position for position in queries if start <= position < end)
    return PlannedRequest(request, sampling_id, first, end, stride, tuple(tables), kept, asked)


def planned_rows(plan: StepPlan, block_sizes: Sequence[int]) -> PlannedRows:
    """Return every planned token with its slot in each KV-cache group.

    A position whose block is not there yet gets slot −1, which no cache write has.
    """
    # Plain loops: a decode step has a handful of rows, where each call of numpy would cost more than all.
    request: list[int] = []
    position: list[int] = []
    sampling_id: list[int] = []
    is_sampled: list[bool] = []
    has_query: list[bool] = []
    slots: list[list[int]] = [[] for _ in block_sizes]
    for planned in plan.requests:
        positions, asked = planned.positions, set(planned.queries)
        request += [planned.request] * len(positions)
        position += positions
        sampling_id += [planned.sampling_id] * len(positions)
        is_sampled += [(at - planned.first) % planned.stride == 0 for at in positions]
        has_query += [at in asked for at in positions]
        for group, (first_block, block_ids) in enumerate(planned.blocks):
            slots[group] += _slots(positions, first_block, block_ids, block_sizes[group])
    return PlannedRows(
        request=np.array(request, dtype=np.int32),
        position=np.array(position, dtype=np.int32),
        sampling_id=np.array(sampling_id, dtype=np.int32),
        is_sampled=np.array(is_sampled, dtype=bool),
        has_query=np.array(has_query, dtype=bool),
        slots=tuple(np.array(of_group, dtype=np.int64) for of_group in slots),
    )


def _slots(
    positions: Sequence[int], first_block: int, block_ids: tuple[int, ...], block_size: int
) -> list[int]:
    slots = []
    for position in positions:
        block = position // block_size - first_block
        is_there = block < len(block_ids)
        slots.append(block_ids[block] * block_size + position % block_size if is_there else -1)
    return slots
