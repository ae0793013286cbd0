"""Replay over a profile: several layers at a time on the CPU, one after the other on a GPU."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.scale_batch import scales_of_tensor
from kvtrace.evaluation.sums import Vectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from kvtrace.evaluation.apply import AppliedScales
    from kvtrace.evaluation.candidate import EngineSetup
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.cells import Cells

    Applied = tuple[EngineSetup | None, AppliedScales]


def replay_profile(
    profile: StoredProfile,
    cells: Cells,
    applied: Sequence[Applied],
    device: str,
    *,
    on_vectors: Callable[[Vectors], None] | None = None,
) -> Iterator[TensorSums]:
    """Yield the sums of every layer, K and V, by layer. applied, on_vectors: as in `replay_directly`."""
    workers = (os.cpu_count() or 1) if device == "cpu" else 1
    with ThreadPoolExecutor(workers, "kvtrace-evaluate") as pool:
        pending: deque[Future[TensorSums]] = deque()
        for tensor in profile.tensors():
            pending.append(pool.submit(_evaluate, tensor, cells, applied, device))
            if on_vectors:
                for vectors in vectors_of(tensor):
                    on_vectors(vectors)
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _evaluate(tensor: TensorProfile, cells: Cells, applied: Sequence[Applied], device: str) -> TensorSums:
    return evaluate_tensor(tensor, cells, scales_of_tensor(applied, tensor.record), len(applied), device)


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
