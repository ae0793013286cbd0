"""Which channels of a KV head are outliers: the few that hold most of its Σ x², whatever the others do.

K biases make such channels in Qwen-like models. Every share of Σ x² is then theirs alone, and the error of
the other channels, the ordinary ones, has to be summed apart to be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.format import StoredDtype
    from kvtrace.trace.reader import BlockRef

_TIMES_MEDIAN: Final = 64.0
"""Σ x² of an outlier channel over that of the head's median one: 8 times its spread."""
_LEAST_SHARE: Final = 0.5
"""Of the head's Σ x² in such channels: with less, the head's own error shows what the others lose."""
_CHUNKS: Final = 4
_ROWS_PER_CHUNK: Final = 32
"""Of a rank's rows so many are looked at: a bias is in all of them, and looking at all would cost a pass."""


def outlier_channels(values: NDArray[np.uint16], dtype: StoredDtype) -> tuple[tuple[int, ...], ...]:
    """Return the outlier channels of each KV head, ascending; none where they hold less than half of Σ x².

    values: [row, kv_head, head_dim], bf16 or fp16 bits. NaN and inf count as 0.
    """
    codes = values & np.uint16(0x7FFF)
    codes[codes > MAX_FINITE_CODE[dtype]] = 0
    magnitudes = magnitudes_of(codes, dtype)
    energy = np.einsum("rhc,rhc->hc", magnitudes, magnitudes, dtype=np.float64)
    is_outlier = energy > _TIMES_MEDIAN * np.median(energy, axis=1, keepdims=True)
    hold_most = np.where(is_outlier, energy, 0).sum(axis=1) > _LEAST_SHARE * energy.sum(axis=1)
    return tuple(
        tuple(np.flatnonzero(own).tolist()) if most else ()
        for own, most in zip(is_outlier, hold_most, strict=True)
    )


def sampled_refs(refs: Sequence[BlockRef]) -> list[BlockRef]:
    """Return the chunks of one layer's K or V in one rank of which rows are looked at, evenly spread."""
    last = len(refs) - 1
    return [refs[place] for place in sorted({number * last // (_CHUNKS - 1) for number in range(_CHUNKS)})]


def sampled_rows(group: Sequence[BlockRef], sampled: Sequence[BlockRef]) -> NDArray[np.int64]:
    """Return the rows to look at, among those of chunks end to end. sampled: some of these chunks."""
    size = group[0].store.rank.rows_per_chunk
    begins = {ref.chunk: number * size for number, ref in enumerate(group)}
    rows: list[NDArray[Any]] = []
    for ref in sampled:
        token = ref.token_of_row[ref.store.rows_of_chunk(ref.chunk)]
        row = np.arange(0, len(token), max(1, len(token) // _ROWS_PER_CHUNK))
        rows.append(begins[ref.chunk] + row[token[row] >= 0])
    return np.concatenate(rows)
