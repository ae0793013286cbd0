"""The profile of one layer, K or V: sparse counts, and how partial ones add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.trace.profile_format import ABSENT, HAS_NONFINITE, NO_FINITE_VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.profile_format import TensorRecord

_CODE_BITS: Final = 15


@dataclass(frozen=True, slots=True)
class OutlierCounts:
    """Counts of the values in outlier channels alone, which are among those of the `TensorProfile` too."""

    code: NDArray[np.uint16]
    count: NDArray[np.uint32]
    start: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TensorProfile:
    """Counts and vector maxima of one layer, K or V. The arrays are those of `trace.profile_format`."""

    record: TensorRecord
    code: NDArray[np.uint16]
    count: NDArray[np.uint32]
    start: NDArray[np.int64]
    absmax: NDArray[np.uint16]
    outliers: OutlierCounts | None = None
    """None: no head has outlier channels, or they were not looked for."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by their names in `trace.profile_format`."""
        own: dict[str, NDArray[Any]] = {
            "code": self.code,
            "count": self.count,
            "start": self.start,
            "absmax": self.absmax,
        }
        if self.outliers is None:
            return own
        names = ("code", "count", "start")
        return own | {f"outlier_{name}": getattr(self.outliers, name) for name in names}

    @property
    def num_cells(self) -> int:
        """Return the cells."""
        return (len(self.start) - 1) // len(self.record.kv_heads)

    @property
    def num_bytes(self) -> int:
        """Return the bytes in memory."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def is_present(self) -> NDArray[np.bool_]:
        """Return [token, kv_head], whether the token was stored for the head."""
        present: NDArray[np.bool_] = np.not_equal(self.absmax, ABSENT)
        return present

    @property
    def has_nonfinite(self) -> NDArray[np.bool_]:
        """Return [token, kv_head], whether the vector holds NaN or inf; meaningless where absent."""
        flagged: NDArray[np.bool_] = np.not_equal(self.absmax & HAS_NONFINITE, 0)
        return flagged

    @property
    def absmax_code(self) -> NDArray[np.int32]:
        """Return [token, kv_head], the code of the largest finite magnitude; -1 where there is none."""
        code = (self.absmax & (HAS_NONFINITE - 1)).astype(np.int32)
        code[code >= NO_FINITE_VALUE] = -1
        return code

    def of_heads(self, heads: slice) -> TensorProfile:
        """Return the part of some consecutive KV heads, outlier channels not told apart."""
        places = range(*heads.indices(len(self.record.kv_heads)))
        start = self.start[places.start * self.num_cells : places.stop * self.num_cells + 1]
        entries = slice(start[0], start[-1])
        record = self.record.model_copy(
            update={
                "kv_heads": self.record.kv_heads[heads],
                "num_entries": int(start[-1] - start[0]),
                "outlier_channels": None,
            }
        )
        absmax = self.absmax[:, heads]
        return TensorProfile(record, self.code[entries], self.count[entries], start - start[0], absmax)

    def all_cells(self) -> TensorProfile:
        """Return the counts of all cells together, as one cell. They are int64: sums may pass 2^32.

        Outlier channels are not told apart in it.
        """
        num_heads = len(self.record.kv_heads)
        head = np.repeat(np.arange(num_heads), np.diff(self.start[:: self.num_cells]))
        keys = (head << _CODE_BITS) | self.code
        # As float64, exact up to 2^53.
        counts: NDArray[Any] = np.bincount(keys, self.count, num_heads << _CODE_BITS).astype(np.int64)
        occurs = np.flatnonzero(counts)
        start = np.searchsorted(occurs, np.arange(num_heads + 1) << _CODE_BITS).astype(np.int64)
        code = (occurs & ((1 << _CODE_BITS) - 1)).astype(np.uint16)
        record = self.record.model_copy(update={"num_entries": len(occurs), "outlier_channels": None})
        return TensorProfile(record, code, counts[occurs], start, self.absmax)


@dataclass(frozen=True, slots=True)
class PartialCounts:
    """Counts of some rows, for some of the heads."""

    heads: tuple[int, ...]
    """Their places along the kv_head axis."""
    code: NDArray[np.uint16]
    count: NDArray[np.uint32]
    start: NDArray[np.int64]
    """[len(heads) · num_cells + 1]."""


def add_counts(
    parts: Sequence[PartialCounts], num_heads: int, num_cells: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.int64]]:
    """Return (code, count, start) of all heads: partial counts added up.

    Raises OverflowError: a counter passes 2^32, which takes a cell of more than 2^25 tokens.
    """
    if len(parts) == 1 and parts[0].heads == tuple(range(num_heads)):
        return parts[0].code, parts[0].count, parts[0].start
    keys = np.concatenate([_keys(part, num_cells) for part in parts] or [np.empty(0, np.int64)])
    counts = np.concatenate([part.count for part in parts] or [np.empty(0, np.uint32)])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order].astype(np.int64)
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    totals = np.add.reduceat(counts, first) if len(first) else counts
    if len(totals) and totals.max() > np.iinfo(np.uint32).max:
        raise OverflowError("a magnitude occurs more than 2^32 times in one cell")
    keys = keys[first]
    segments = np.arange(num_heads * num_cells + 1) << _CODE_BITS
    code = (keys & ((1 << _CODE_BITS) - 1)).astype(np.uint16)
    return code, totals.astype(np.uint32), np.searchsorted(keys, segments).astype(np.int64)


def _keys(part: PartialCounts, num_cells: int) -> NDArray[np.int64]:
    """Return (kv_head, cell, code) of every entry as one sortable number."""
    segment = np.add.outer(np.array(part.heads) * num_cells, np.arange(num_cells)).reshape(-1)
    keys: NDArray[np.int64] = (np.repeat(segment, np.diff(part.start)) << _CODE_BITS) | part.code
    return keys
