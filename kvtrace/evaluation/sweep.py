"""What a range of scales would do to every head, over the counts that the replay has anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.in_order import worked_on
from kvtrace.evaluation.profiled import num_threads
from kvtrace.evaluation.scale_batch import ScaleBatch
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.formats import find_format
from kvtrace.trace.cells import Cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile

LOG2_MULTIPLES: Final = tuple(step / 2 for step in range(-8, 25))
"""k from -4 to 12: from clipping nearly everything that matters to flushing it."""


@dataclass(frozen=True, slots=True)
class SweepSums:
    """What the scales of a sweep do in every layer, K and V."""

    engine: str
    format: str
    tensors: tuple[tuple[TensorSums, NDArray[np.float32]], ...]
    """The sums, all cells as one and the multiples as candidates; the scales, [multiple, kv_head], 0 where
    there is none."""


def sweep(profile: StoredProfile, applied: Sequence[AppliedScales], device: str) -> SweepSums | None:
    """Return the sums of every head at scales of 2^k · largest finite |x| / MAX; None without static scales.

    Engine and format are those of the first candidate with static scales.
    A head without a value other than 0 has no such scale; nor has a scale × MAX beyond float32.
    """
    setup = next((one.candidate.setup for one in applied if one.candidate.setup is not None), None)
    if setup is None:
        return None
    found = worked_on(lambda tensor: _sums(tensor, setup, device), profile.tensors(), num_threads(device))
    return SweepSums(setup.engine, setup.fp8_format, tuple(found))


def _sums(tensor: TensorProfile, setup: ServingSetup, device: str) -> tuple[TensorSums, NDArray[np.float32]]:
    """Return the sums at every multiple, and the scales, [multiple, kv_head]; 0 where there is none."""
    pooled = tensor.all_cells()
    scale = _scales(_amax(pooled), setup)
    # Heads without a scale are worked out at 1.0 with the others, and left out of what is written.
    batch = ScaleBatch(setup, np.arange(len(scale)), np.where(scale > 0, scale, np.float32(1)))
    return evaluate_tensor(pooled, _one_cell(pooled), [batch], len(scale), device), scale


def _amax(tensor: TensorProfile) -> NDArray[np.float32]:
    """Return the largest finite magnitude of each head; 0 where there is none."""
    largest = np.zeros(len(tensor.record.kv_heads), np.int64)
    for axis in range(len(largest)):
        codes = tensor.code[tensor.start[axis] : tensor.start[axis + 1]]
        largest[axis] = codes[codes <= MAX_FINITE_CODE[tensor.record.dtype]].max(initial=0)
    return magnitudes_of(largest, tensor.record.dtype)


def _scales(amax: NDArray[np.float32], setup: ServingSetup) -> NDArray[np.float32]:
    """Return [multiple, kv_head]; 0 where float32 has no such scale, or none for what it covers."""
    largest = find_format(setup.fp8_format).max_value
    exact = np.exp2(LOG2_MULTIPLES)[:, None] * amax.astype(np.float64) / largest
    with np.errstate(over="ignore"):
        scale = exact.astype(np.float32)
        covered = scale * np.float32(largest)
    return np.where(np.isfinite(covered), scale, np.float32(0))


def _one_cell(tensor: TensorProfile) -> Cells:
    zero = np.zeros(1, np.int32)
    return Cells(("",), zero.astype(np.int8), zero, zero, np.zeros(len(tensor.absmax), np.int32))
