"""What a range of scales would do to every head, over the counts that the replay has anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.in_order import worked_on
from kvtrace.evaluation.profiled import num_threads
from kvtrace.evaluation.scale_batch import ScaleBatch
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.formats import find_format
from kvtrace.runs.schema import SWEEP
from kvtrace.trace.cells import Cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.candidates.candidate import Candidate, EngineSetup
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.runs.write import RunWriter

LOG2_MULTIPLES: Final = tuple(step / 2 for step in range(-8, 25))
"""k from -4 to 12: from clipping nearly everything that matters to flushing it."""


def write_sweep(
    run: RunWriter,
    source: str,
    profile: StoredProfile,
    candidates: Sequence[Candidate],
    device: str,
) -> None:
    """Write the sums of every head at scales of 2^k · largest finite |x| / MAX, all cells together.

    Engine and format are those of the first candidate with static scales; without one, nothing is written.
    A head without a value other than 0 has no such scale, and no row; nor has a scale × MAX beyond float32.
    """
    setups = [one.setup for one in candidates if one.setup is not None and one.policy is None]
    if not setups:
        return
    setup = setups[0]
    found = worked_on(lambda tensor: _sums(tensor, setup, device), profile.tensors(), num_threads(device))
    # Few rows in all: written together, since a write costs as much as a hundred of them.
    tables = [_columns(source, setup, sums, scale) for sums, scale in found]
    if tables:
        run.write(SWEEP, {name: np.concatenate([table[name] for table in tables]) for name in tables[0]})


def _sums(tensor: TensorProfile, setup: EngineSetup, device: str) -> tuple[TensorSums, NDArray[np.float32]]:
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


def _scales(amax: NDArray[np.float32], setup: EngineSetup) -> NDArray[np.float32]:
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


def _columns(
    source: str, setup: EngineSetup, sums: TensorSums, scale: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    step, head = np.nonzero(scale > 0)
    values, errors, count = sums.values, sums.errors, len(step)
    covered = scale * np.float32(find_format(setup.fp8_format).max_value)
    return {
        "source": np.full(count, source, object),
        "engine": np.full(count, setup.engine, object),
        "format": np.full(count, setup.fp8_format, object),
        "layer": np.full(count, sums.layer),
        "kv_head": np.array(sums.kv_heads)[head],
        "tensor": np.full(count, sums.tensor, object),
        "log2_multiple": np.array(LOG2_MULTIPLES)[step],
        "scale": scale[step, head],
        "covered_amax": covered[step, head],
        **{name: getattr(values, name)[0, head] for name in ("num_values", "sum_sq_signal")},
        **{name: getattr(errors, name)[step, 0, head] for name in _ERROR_COLUMNS},
    }


_ERROR_COLUMNS: Final = ("num_clipped", "num_flushed", "sum_sq_error", "sum_sq_clip_error")
