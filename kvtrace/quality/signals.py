"""Shares of a run by answer: over all heads of K and of V, and of every head that clips anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvtrace.quality.comparison import Rate
from kvtrace.quality.ranks import rank_test
from kvtrace.quality.tied import Measure, Signal, Tensor
from kvtrace.query import find_query, run_query
from kvtrace.stats.fractions import fraction_intervals, request_sums

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace.query import RunConnection

_MOST_SHOWN: Final = 10
_ALL_REQUESTS: Final = str(2**31 - 1)
_MEASURES: Final[tuple[Measure, ...]] = ("clipped", "out_of_range")
_TENSORS: Final[tuple[Tensor, ...]] = ("k", "v")


class Column(NamedTuple):
    """What one column of shares is of; layer and head None: all heads of the tensor."""

    tensor: Tensor
    measure: Measure
    layer: int | None = None
    kv_head: int | None = None


class Whole(NamedTuple):
    """A request's vectors of one tensor, all heads."""

    num_vectors: int
    out_of_range: float
    clipped: float
    worst_layer: int | None
    worst_kv_head: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """One candidate in one trace of a run."""

    whole: Mapping[tuple[int, Tensor], Whole]
    heads: Mapping[Column, Mapping[int, float]]
    """Column → request → share; a request that is absent has none."""

    def num_vectors(self, request: int) -> int:
        """Return its captured vectors of K and V; 0: it is not in the run."""
        return sum(
            self.whole[request, tensor].num_vectors for tensor in _TENSORS if (request, tensor) in self.whole
        )

    def columns(self) -> tuple[Column, ...]:
        """Return what can be compared: K and V over all heads, then heads."""
        overall = [Column(tensor, measure) for tensor in _TENSORS for measure in _MEASURES]
        return (*overall, *sorted(self.heads, key=str))

    def shares(self, columns: Sequence[Column], units: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Return [units, columns]: the mean over each unit's requests."""
        found = np.zeros((len(units), len(columns)))
        for place, column in enumerate(columns):
            for row, requests in enumerate(units):
                found[row, place] = sum(self._share(column, one) for one in requests) / len(requests)
        return found

    def _share(self, column: Column, request: int) -> float:
        if column.layer is not None:
            return self.heads[column].get(request, 0.0)
        whole = self.whole.get((request, column.tensor))
        if whole is None:
            return 0.0
        return whole.clipped if column.measure == "clipped" else whole.out_of_range


def read_counts(connection: RunConnection, candidate: str, source: str) -> Counts:
    """Return the shares of every request of a trace under a candidate."""
    asked = {"candidate": candidate, "source": source}
    whole = {
        (row["request"], row["tensor"]): Whole(
            row["num_vectors"],
            row["vectors_out_of_range_frac"] or 0.0,
            row["vectors_clipped_frac"] or 0.0,
            row["worst_layer"],
            row["worst_kv_head"],
        )
        for row in run_query(
            connection, find_query("by_request"), {"candidate": candidate, "top": _ALL_REQUESTS}
        ).records()
        if row["source"] == source
    }
    heads: dict[Column, dict[int, float]] = {}
    for row in run_query(connection, find_query("request_heads"), asked).records():
        column = Column(row["tensor"], "clipped", row["layer"], row["kv_head"])
        if row["vectors_clipped_frac"]:
            heads.setdefault(column, {})[row["request"]] = row["vectors_clipped_frac"]
    return Counts(whole, heads)


def compare_signals(
    counts: Counts, units: Sequence[Sequence[int]], is_lost: NDArray[np.bool_], confidence: float
) -> tuple[tuple[Signal, ...], int]:
    """Return the signals to show and how many were compared.

    units: the requests of each; is_lost: [units], with at least one lost and one kept. Shown are K and V over
    all heads, then the heads that tell most.
    """
    columns = counts.columns()
    shares = counts.shares(columns, units)
    tested = rank_test(shares, is_lost)
    order = sorted(range(len(columns)), key=lambda at: (tested.p_value[at], -tested.auc[at], at))
    overall = [at for at, column in enumerate(columns) if column.layer is None]
    heads = [at for at in order if columns[at].layer is not None][:_MOST_SHOWN]
    shown = tuple(
        _signal(columns[at], shares[:, at] > 0, is_lost, tested.auc[at], tested.p_value[at], confidence)
        for at in (*overall, *heads)
    )
    return shown, len(columns)


def _signal(
    column: Column,
    has_any: NDArray[np.bool_],
    is_lost: NDArray[np.bool_],
    auc: float,
    p_value: float,
    confidence: float,
) -> Signal:
    return Signal(
        **column._asdict(),
        auc=float(auc),
        p_value=float(p_value),
        num_lost_with=int(np.sum(has_any & is_lost)),
        num_kept_with=int(np.sum(has_any & ~is_lost)),
        lost_frac=_rate(has_any[is_lost], confidence),
        kept_frac=_rate(has_any[~is_lost], confidence),
    )


def _rate(has_any: NDArray[np.bool_], confidence: float) -> Rate:
    found = fraction_intervals(
        request_sums(has_any.astype(np.float64), np.ones(len(has_any))), confidence=confidence
    )
    return Rate(
        value=float(found.fraction),
        low=float(found.low),
        high=None if found.too_few_requests else float(found.high),
    )
