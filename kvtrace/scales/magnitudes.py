"""Exact counts of the magnitudes in a trace, per selection × layer × KV head × tensor.

bf16 and fp16 values have at most 32,768 magnitudes, so the counts are a lossless summary for every static
scale: range, clipping, flushing and squared error follow from them. float32 values are counted by their bits
in the same way, without the guarantee that there are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.format import StoredDtype
    from kvtrace.trace.reader import Trace

NOT_SELECTED: Final = -1
Group = tuple[int, int, str]
"""(layer, global kv_head, `k` | `v`)"""


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """The finite magnitudes of one group of values.

    values: [num_distinct] float64, ascending, ≥ 0. counts: [num_distinct] int64, > 0.
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    num_nonfinite: int = 0

    @property
    def amax(self) -> float:
        """Return the largest finite magnitude; 0.0 where there is no value."""
        return float(self.values[-1]) if len(self.values) else 0.0

    @property
    def num_values(self) -> int:
        """Return the number of finite values."""
        return int(self.counts.sum())

    @property
    def sum_sq(self) -> float:
        """Return Σ x² over finite values."""
        return float(np.dot(self.values**2, self.counts))

    def percentile(self, percent: float) -> float:
        """Return the smallest magnitude that at least `percent` % of the values do not exceed.

        >>> m = Magnitudes(np.array([1.0, 2.0, 9.0]), np.array([98, 1, 1]))
        >>> m.percentile(98.0), m.percentile(98.5), m.percentile(100.0)
        (1.0, 2.0, 9.0)
        """
        cumulative = np.cumsum(self.counts)
        wanted = np.ceil(cumulative[-1] * (percent / 100) - 1e-9)
        return float(self.values[np.searchsorted(cumulative, wanted)])


@dataclass(frozen=True, slots=True)
class TraceSelection:
    """One trace and the selection that each of its tokens belongs to.

    selection_of_token: [num_tokens] int, index of the selection or NOT_SELECTED.
    """

    trace: Trace
    selection_of_token: NDArray[np.integer[Any]]


def count_magnitudes(
    sources: Sequence[TraceSelection],
    num_selections: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[dict[Group, Magnitudes]]:
    """Return, per selection, the counts of every group with a row in it. Each tensor is read once.

    Memory holds one chunk and the counts, some 20 KB a group of bf16 values. progress: takes (blocks done,
    all).
    Raises IntegrityError: a chunk is missing, cut or damaged.
    """
    found: list[dict[Group, _Counter]] = [{} for _ in range(num_selections)]
    refs = [(source, ref) for source in sources for ref in source.trace.block_refs()]
    for done, (source, ref) in enumerate(refs):
        progress(done, len(refs))
        block = ref.load()
        selection = source.selection_of_token[block.row]
        codes = _codes(block.values)
        for number, counters in enumerate(found):
            chosen = codes[selection == number] if (selection != number).any() else codes
            if not len(chosen):
                continue
            for axis, head in enumerate(block.kv_heads):
                group = (block.layer.index, head, block.tensor)
                counter = counters.setdefault(group, _Counter(block.layer.dtype))
                counter.add(chosen[:, axis])
    return [{group: counter.result() for group, counter in counters.items()} for counters in found]


def merged(parts: Iterable[Magnitudes]) -> Magnitudes:
    """Return the counts of several groups as one: of a tensor's heads, or of several selections."""
    chosen = list(parts)
    values, counts = _summed(
        np.concatenate([p.values for p in chosen]), np.concatenate([p.counts for p in chosen])
    )
    return Magnitudes(values, counts, sum(p.num_nonfinite for p in chosen))


def by_layer(groups: Mapping[Group, Magnitudes]) -> dict[tuple[int, str], Magnitudes]:
    """Return the counts per (layer, tensor), heads merged."""
    heads: dict[tuple[int, str], list[Magnitudes]] = {}
    for (layer, _, tensor), magnitudes in groups.items():
        heads.setdefault((layer, tensor), []).append(magnitudes)
    return {key: merged(parts) for key, parts in sorted(heads.items())}


class _Counter:
    """Sparse counts of one group's codes; they grow with each block."""

    def __init__(self, dtype: StoredDtype) -> None:
        self._dtype = dtype
        self._codes = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)

    def add(self, codes: NDArray[Any]) -> None:
        if self._dtype == "float32":
            new, counts = np.unique(codes, return_counts=True)
        else:
            dense = np.bincount(codes.ravel())
            new = np.flatnonzero(dense)
            counts = dense[new]
        self._codes, self._counts = _summed(
            np.concatenate([self._codes, new.astype(np.int64)]), np.concatenate([self._counts, counts])
        )

    def result(self) -> Magnitudes:
        finite = self._codes <= MAX_FINITE_CODE[self._dtype]
        values = magnitudes_of(self._codes[finite], self._dtype).astype(np.float64)
        return Magnitudes(values, self._counts[finite], int(self._counts[~finite].sum()))


def _codes(values: NDArray[Any]) -> NDArray[Any]:
    """Return the bits without the sign; they order like magnitudes."""
    if values.dtype == np.float32:
        return values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return values & np.uint16(0x7FFF)


def _summed(keys: NDArray[Any], counts: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct keys, ascending, and the sum of each one's counts."""
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, inverse, counts)
    return unique, sums
