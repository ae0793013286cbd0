"""What cache formats that code vector by vector do to a trace: counts of values do not say it, rows do.

One read serves all of them. The sums of a format that takes no scales depend on the trace alone: they are
kept in it, by cell, and made again only where another trace, another user or other layers ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.evaluation.coded_block import BlockWork, block_sums
from kvtrace.evaluation.in_order import worked_on
from kvtrace.evaluation.kept_sums import KeptSums, TensorFormatSums, keep, kept_sums
from kvtrace.evaluation.profiled import num_threads
from kvtrace.evaluation.reading import read_blocks
from kvtrace.profile.ready import require_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.evaluation.reading import Progress
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Block, Trace

Place = tuple[int, str]
"""Layer, k or v."""


@dataclass(frozen=True, slots=True)
class CodedSums:
    """Sums of every candidate that has codings, by its number."""

    of_candidate: Mapping[int, Mapping[Place, TensorFormatSums]]

    def fill(self, sums: TensorSums) -> None:
        """Put them in the candidates' places of one layer, K or V. Layers left native lose nothing."""
        place = sums.layer, sums.tensor
        for number, tensors in self.of_candidate.items():
            if place in tensors:
                tensors[place].fill(sums, number)


def coded_sums(
    trace: Trace,
    cells: Cells,
    applied: Sequence[AppliedScales],
    device: str,
    progress: Progress | None = None,
) -> tuple[CodedSums, bool]:
    """Return the sums of all candidates that have codings, and whether tensors were read for them.

    Raises IntegrityError: a chunk is missing or damaged. InputError: the tensors are not there any more.
    """
    found: dict[int, Mapping[Place, TensorFormatSums]] = {}
    missing: dict[int, AppliedScales] = {}
    for number, one in enumerate(applied):
        if one.codings:
            kept = kept_sums(trace, one)
            if kept is None:
                missing[number] = one
            else:
                found[number] = kept.by_place()
    if missing:
        names = ", ".join(one.candidate.name for one in missing.values())
        require_tensors(trace, f"the first replay of {names}")
        made = _read(trace, cells, missing, device, progress)
        for number, one in missing.items():
            found[number] = made[number]
            keep(trace, one, KeptSums.of(trace, one, made[number]))
    return CodedSums(found), bool(missing)


def _read(
    trace: Trace,
    cells: Cells,
    wanted: Mapping[int, AppliedScales],
    device: str,
    progress: Progress | None,
) -> dict[int, dict[Place, TensorFormatSums]]:
    """Return the sums of every candidate wanted, over one read of the rows."""

    def work(block: Block) -> tuple[Block, list[BlockWork]]:
        works = _works(block, wanted)
        block_sums(block, cells, works, device)
        return block, works

    totals: dict[int, dict[Place, tuple[NDArray[Any], NDArray[Any]]]] = {number: {} for number in wanted}
    for block, works in worked_on(work, read_blocks(trace, progress), num_threads(device)):
        layer = trace.layers[block.layer.index]
        heads = [layer.kv_heads.index(head) for head in block.kv_heads]
        shape = (len(cells), len(layer.kv_heads))
        for one in works:
            for number in one.numbers:
                counts, squares = totals[number].setdefault(
                    (layer.index, block.tensor), (np.zeros((*shape, 3), np.int64), np.zeros((*shape, 2)))
                )
                counts[:, heads] += one.counts
                squares[:, heads] += one.squares
    return {
        number: {place: TensorFormatSums.of(place, *sums) for place, sums in sorted(of.items())}
        for number, of in totals.items()
    }


def _works(block: Block, wanted: Mapping[int, AppliedScales]) -> list[BlockWork]:
    """Return what to do with a block: each coding once, for all candidates that share it and its scales."""
    works: dict[Any, BlockWork] = {}
    for number, one in wanted.items():
        coding = one.codings.get((block.layer.index, block.tensor))
        if coding is not None:
            scales = None
            if coding.uses_scale:
                scales = one.of_heads(block.layer.index, block.tensor, block.kv_heads)
            key = coding, None if scales is None else tuple(scales)
            works.setdefault(key, BlockWork(coding, scales)).numbers.append(number)
    return list(works.values())
