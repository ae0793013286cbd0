"""What candidates do to the ordinary channels, in heads whose outlier channels hold most of Σ x²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.scale_batch import ScaleBatch
from kvtrace.profile.counts import TensorProfile
from kvtrace.trace.cells import Cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.evaluation.sums import TensorSums

_NUM_CODES: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class OrdinarySums:
    """Sums over ordinary channels of one layer, K or V, in the heads that have outlier channels."""

    strata: Cells
    """Workload × sampling_id, any phase and position: the cell axis."""
    numbers: NDArray[np.int64]
    """[candidate], places along the replay's candidate axis of those with static scales."""
    channel_count: NDArray[np.int64]
    """[kv_head], ordinary channels."""
    sums: TensorSums
    """Of these candidates, in their order."""


@dataclass(frozen=True, slots=True)
class OrdinaryChannels:
    """The same, and what the candidate axis of the replay is."""

    candidates: tuple[str, ...]
    ordinary: OrdinarySums


def ordinary_sums(
    tensor: TensorProfile, cells: Cells, batches: Sequence[ScaleBatch], device: str
) -> OrdinarySums | None:
    """Return the sums of the ordinary channels; None where no head has others, or no candidate static scales.

    tensor: over `cells`. Strata are few, so that this costs little beside the sums of all cells.
    """
    channels = tensor.record.outlier_channels or ()
    heads = [axis for axis, own in enumerate(channels) if own]
    if not heads or not batches:
        return None
    strata, stratum_of_cell = _strata(cells)
    own_batches, first = [], 0
    for batch in batches:
        places = np.arange(first, first := first + len(batch.numbers))
        own_batches.append(ScaleBatch(batch.setup, places, batch.scale[:, heads]))
    pooled = _ordinary_counts(tensor, heads, stratum_of_cell, len(strata))
    return OrdinarySums(
        strata,
        np.concatenate([batch.numbers for batch in batches]),
        np.array([tensor.record.head_dim - len(channels[axis]) for axis in heads]),
        evaluate_tensor(pooled, strata, own_batches, first, device),
    )


def _strata(cells: Cells) -> tuple[Cells, NDArray[np.int64]]:
    """Return the cells pooled over phases and positions, and the stratum of each cell."""
    of_cell = list(zip(cells.workload, cells.sampling_id.tolist(), strict=True))
    found = sorted(set(of_cell))
    number = np.array([found.index(one) for one in of_cell], np.int64)
    strata = Cells(
        workload=tuple(workload for workload, _ in found),
        phase=np.zeros(len(found), np.int8),
        octave=np.full(len(found), -1, np.int32),
        sampling_id=np.array([sampling_id for _, sampling_id in found], np.int32),
        of_token=number.astype(np.int32)[cells.of_token],
    )
    return strata, number


def _ordinary_counts(
    tensor: TensorProfile, heads: Sequence[int], stratum: NDArray[np.int64], num_strata: int
) -> TensorProfile:
    """Return the counts of all channels less those of outlier channels, of some heads, by stratum.

    stratum: [cell].
    """
    assert tensor.outliers is not None, "a head has outlier channels"
    codes, counts, lengths = [], [], [np.zeros(1, np.int64)]
    for head in heads:
        left = _by_stratum(tensor, head, stratum, num_strata)
        left -= _by_stratum(tensor.outliers, head, stratum, num_strata)
        occurs = np.flatnonzero(left)
        codes.append((occurs % _NUM_CODES).astype(np.uint16))
        counts.append(left[occurs].astype(np.int64))
        lengths.append(np.bincount(occurs // _NUM_CODES, minlength=num_strata))
    code = np.concatenate(codes)
    record = tensor.record.model_copy(
        update={
            "kv_heads": tuple(tensor.record.kv_heads[head] for head in heads),
            "num_entries": len(code),
            "outlier_channels": None,
            "num_outlier_entries": 0,
        }
    )
    start = np.cumsum(np.concatenate(lengths))
    return TensorProfile(record, code, np.concatenate(counts), start, tensor.absmax[:, heads])


def _by_stratum(counts: Any, head: int, stratum: NDArray[np.int64], num_strata: int) -> NDArray[Any]:
    """Return [stratum × code] how often each occurs in a head; exact up to 2^53."""
    start = counts.start[head * len(stratum) : (head + 1) * len(stratum) + 1]
    entries = slice(start[0], start[-1])
    key = np.repeat(stratum * _NUM_CODES, np.diff(start)) + counts.code[entries]
    found: NDArray[Any] = np.bincount(key, counts.count[entries], num_strata * _NUM_CODES)
    return found
