"""Replay over a profile: several layers at a time on the CPU, one after the other on a GPU."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.in_order import worked_on
from kvtrace.evaluation.ordinary import OrdinarySums, ordinary_sums
from kvtrace.evaluation.scale_batch import scales_of_tensor
from kvtrace.evaluation.sums import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.cells import Cells


def replay_profile(
    profile: StoredProfile,
    cells: Cells,
    applied: Sequence[AppliedScales],
    device: str,
    *,
    with_vectors: bool = True,
) -> Iterator[TensorSums | Vectors | OrdinarySums]:
    """Yield the vectors of every layer, K and V, if asked for, and the sums, by layer.

    applied: as in `replay_directly`. Sums of ordinary channels come where the profile tells them apart.
    """

    def evaluate(tensor: TensorProfile) -> list[TensorSums | Vectors | OrdinarySums]:
        scales = scales_of_tensor(applied, tensor.record)
        vectors = vectors_of(tensor) if with_vectors else ()
        ordinary = ordinary_sums(tensor, cells, scales, device)
        return [
            *vectors,
            evaluate_tensor(tensor, cells, scales, len(applied), device),
            *([ordinary] if ordinary else []),
        ]

    return chain.from_iterable(worked_on(evaluate, profile.tensors(), num_threads(device)))


def num_threads(device: str) -> int:
    """Return the layers to evaluate at a time."""
    return (os.cpu_count() or 1) if device == "cpu" else 1


def vectors_of(tensor: TensorProfile) -> Iterator[Vectors]:
    """Yield the stored vectors of one layer, K or V: all heads at once where they have the same tokens."""
    record, present = tensor.record, tensor.is_present
    same = bool((present == present[:, :1]).all())
    for axes in [list(range(len(record.kv_heads)))] if same else [[i] for i in range(len(record.kv_heads))]:
        row = np.flatnonzero(present[:, axes[0]])
        yield Vectors(
            record.layer,
            record.tensor,
            tuple(record.kv_heads[axis] for axis in axes),
            row,
            tensor.absmax_code[row][:, axes],
            tensor.has_nonfinite[row][:, axes],
        )
