"""What a range of scales would do to every head, over the counts that the replay has anyway."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.prepared import ScaleBatch
from kvtrace.evaluation.profiled import single_threaded_workers
from kvtrace.numerics.formats import find_format
from kvtrace.numerics.limits import (
    MAX_FINITE_CODE,
    magnitude_of_codes,
    max_flushed_code,
    max_in_range_code,
    max_unclipped_code,
)
from kvtrace.runs.schema import SWEEP
from kvtrace.trace.cells import Cells

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from kvtrace.evaluation.candidate import Candidate, EngineSetup
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
    device: torch.device,
) -> None:
    """Write the sums of every head at scales of 2^k · largest finite |x| / MAX, all cells together.

    Engine and format are those of the first candidate with static scales; without one, nothing is written.
    A head without a value other than 0 has no such scale, and no row.
    """
    setups = [one.setup for one in candidates if one.setup is not None and one.policy is None]
    if not setups:
        return
    setup = setups[0]
    workers = (os.cpu_count() or 1) if device.type == "cpu" else 1
    with single_threaded_workers(workers) as pool:
        pending: deque[Future[tuple[TensorSums, torch.Tensor]]] = deque()
        for tensor in profile.tensors():
            pending.append(pool.submit(_sums, tensor, setup, device))
            if len(pending) > workers:
                _write(run, source, setup, *pending.popleft().result())
        while pending:
            _write(run, source, setup, *pending.popleft().result())


def _sums(tensor: TensorProfile, setup: EngineSetup, device: torch.device) -> tuple[TensorSums, torch.Tensor]:
    """Return the sums at every multiple, and the scales, [multiple, kv_head]; 0 where there is none."""
    pooled = tensor.all_cells()
    scale = _scales(_amax(pooled), setup)
    # Heads without a scale are worked out at 1.0 with the others, and left out of what is written.
    batch = _batch(torch.where(scale > 0, scale, 1.0), pooled, setup, device)
    return evaluate_tensor(pooled, _one_cell(pooled), [batch], len(scale), device), scale


def _amax(tensor: TensorProfile) -> torch.Tensor:
    """Return the largest finite magnitude of each head, float32; 0 where there is none."""
    largest = np.zeros(len(tensor.record.kv_heads), np.int64)
    for axis in range(len(largest)):
        codes = tensor.code[tensor.start[axis] : tensor.start[axis + 1]]
        largest[axis] = codes[codes <= MAX_FINITE_CODE[tensor.record.dtype]].max(initial=0)
    return magnitude_of_codes(torch.from_numpy(largest), tensor.record.dtype).float()


def _scales(amax: torch.Tensor, setup: EngineSetup) -> torch.Tensor:
    """Return [multiple, kv_head], float32; 0 where float32 has no such scale."""
    multiples = torch.tensor(LOG2_MULTIPLES, dtype=torch.float64).exp2()
    scale = (multiples[:, None] * amax.double() / find_format(setup.fp8_format).max_value).float()
    return torch.where(torch.isfinite(scale), scale, 0.0)


def _batch(
    scale: torch.Tensor, tensor: TensorProfile, setup: EngineSetup, device: torch.device
) -> ScaleBatch:
    scale = scale.to(device)
    options = {"engine": setup.engine, "format": setup.fp8_format}
    limits = (
        limit(scale, tensor.record.dtype, **options).long()
        for limit in (max_in_range_code, max_unclipped_code, max_flushed_code)
    )
    return ScaleBatch(setup, list(range(len(scale))), scale, *limits)


def _one_cell(tensor: TensorProfile) -> Cells:
    zero = np.zeros(1, np.int32)
    return Cells(("",), zero.astype(np.int8), zero, zero, np.zeros(len(tensor.absmax), np.int32))


def _write(
    run: RunWriter,
    source: str,
    setup: EngineSetup,
    sums: TensorSums,
    scale: torch.Tensor,
) -> None:
    step, head = np.nonzero(scale.numpy() > 0)
    values, errors, count = sums.values, sums.errors, len(step)
    covered = scale * find_format(setup.fp8_format).max_value
    columns: dict[str, Any] = {
        "source": [source] * count,
        "engine": [setup.engine] * count,
        "format": [setup.fp8_format] * count,
        "layer": np.full(count, sums.layer),
        "kv_head": np.array(sums.kv_heads)[head],
        "tensor": [sums.tensor] * count,
        "log2_multiple": np.array(LOG2_MULTIPLES)[step],
        "scale": scale.numpy()[step, head],
        "covered_amax": covered.numpy()[step, head],
        **{name: getattr(values, name)[0, head] for name in ("num_values", "sum_sq_signal")},
        **{name: getattr(errors, name)[step, 0, head] for name in _ERROR_COLUMNS},
    }
    run.write(SWEEP, columns)


_ERROR_COLUMNS: Final = ("num_clipped", "num_flushed", "sum_sq_error", "sum_sq_clip_error")
