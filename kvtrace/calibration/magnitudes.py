"""Exact counts of the magnitudes in a trace, per selection × layer × KV head × tensor.

bf16 and fp16 values have at most 32,768 magnitudes, so the counts are a lossless summary for every static
scale: range, clipping, flushing and squared error follow from them. float32 values are counted by their bits
in the same way, without the guarantee that there are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.profile.build import count_tensors
from kvtrace.profile.ready import can_be_profiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.format import StoredDtype
    from kvtrace.trace.reader import Trace

    Progress = Callable[[int, int], None]
    Counted = tuple[int, "Group", "Magnitudes"]
    """(selection, group, its counts)"""

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

    Memory holds a few layers' values, or a chunk of float32, and the counts, some 20 KB a group of bf16.
    progress: takes (parts done, all).
    Raises IntegrityError: a chunk is missing, cut or damaged.
    """
    found: list[dict[Group, list[Magnitudes]]] = [{} for _ in range(num_selections)]
    for place, source in enumerate(sources):
        count = _count_16_bits if can_be_profiled(source.trace) else _count_any

        def of_all(done: int, total: int, place: int = place) -> None:
            progress(place * total + done, len(sources) * total)

        for number, group, magnitudes in count(source, num_selections, of_all):
            found[number].setdefault(group, []).append(magnitudes)
    # In one order however the threads went, so that sums over groups are the same to the last bit.
    return [
        {group: merged(parts) if len(parts) > 1 else parts[0] for group, parts in sorted(groups.items())}
        for groups in found
    ]


def _count_16_bits(source: TraceSelection, num_selections: int, progress: Progress) -> Iterator[Counted]:
    """Yield (selection, group, counts) of bf16 and fp16 layers: what the replay counts, by selection."""
    selection = source.selection_of_token
    for tensor in count_tensors(source.trace, selection, num_selections, "cpu", progress=progress):
        record = tensor.record
        for segment, (head, number) in enumerate(product(record.kv_heads, range(num_selections))):
            entries = slice(tensor.start[segment], tensor.start[segment + 1])
            code, count = tensor.code[entries], tensor.count[entries].astype(np.int64)
            if len(code):
                yield number, (record.layer, head, record.tensor), counted(code, count, record.dtype)


def _count_any(source: TraceSelection, num_selections: int, progress: Progress) -> Iterator[Counted]:
    """Yield the same of any layers, by their bits."""
    found: dict[tuple[int, Group], Magnitudes] = {}
    refs = source.trace.block_refs()
    for done, ref in enumerate(refs):
        progress(done, len(refs))
        block = ref.load()
        selection = source.selection_of_token[block.row]
        codes = _codes(block.values)
        for number in range(num_selections):
            chosen = codes[selection == number]
            for axis, head in enumerate(block.kv_heads if len(chosen) else ()):
                key = number, (block.layer.index, head, block.tensor)
                part = counted(*np.unique(chosen[:, axis], return_counts=True), block.layer.dtype)
                found[key] = merged([found[key], part]) if key in found else part
    for (number, group), magnitudes in found.items():
        yield number, group, magnitudes


def merged(parts: Iterable[Magnitudes]) -> Magnitudes:
    """Return the counts of several groups as one: of a tensor's heads, or of several selections."""
    chosen = list(parts)
    values, counts = _summed(
        np.concatenate([p.values for p in chosen]), np.concatenate([p.counts for p in chosen])
    )
    return Magnitudes(values, counts, sum(p.num_nonfinite for p in chosen))


def counted(codes: NDArray[Any], counts: NDArray[np.int64], dtype: StoredDtype) -> Magnitudes:
    """Return how often the codes of a captured dtype occur. codes: ascending, each once."""
    finite = codes <= MAX_FINITE_CODE[dtype]
    values = magnitudes_of(codes[finite], dtype).astype(np.float64)
    return Magnitudes(values, counts[finite], int(counts[~finite].sum()))


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
