"""All candidates' scales as arrays, with the codes where ranges end, computed once for a whole trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvtrace.numerics.limits import max_flushed_code, max_in_range_code, max_unclipped_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kvtrace.evaluation.apply import AppliedScales
    from kvtrace.evaluation.candidate import EngineSetup
    from kvtrace.trace.profile_format import TensorRecord


@dataclass(frozen=True, slots=True)
class ScaleBatch:
    """Some candidates with one setup, in one layer, K or V. Tensors are [candidate, kv_head]."""

    setup: EngineSetup
    numbers: list[int]
    """Their places along the candidate axis of the sums."""
    scale: Tensor
    """float32."""
    in_range: Tensor
    """int64, largest code in range; `unclipped` and `flushed` likewise."""
    unclipped: Tensor
    flushed: Tensor

    def part(self, candidates: slice, heads: slice = slice(None)) -> ScaleBatch:
        """Return some of the candidates, in some of the heads."""
        arrays = (self.scale, self.in_range, self.unclipped, self.flushed)
        return ScaleBatch(self.setup, self.numbers[candidates], *(a[candidates, heads] for a in arrays))


def prepare_scales(
    applied: Sequence[tuple[EngineSetup | None, AppliedScales]],
    tensors: Sequence[TensorRecord],
    device: torch.device,
) -> dict[tuple[int, str], list[ScaleBatch]]:
    """Return, per (layer, tensor), the candidates that quantize it, one batch per setup."""
    batches: dict[tuple[int, str], list[ScaleBatch]] = {(t.layer, t.tensor): [] for t in tensors}
    for setup in dict.fromkeys(setup for setup, _ in applied if setup is not None):
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            for quantized, numbers in _same_layers(applied, setup):
                chosen = [t for t in tensors if t.dtype == dtype and t.layer in quantized]
                scale = torch.tensor(
                    [[v for t in chosen for v in _values(applied[i][1], t)] for i in numbers],
                    dtype=torch.float32,
                    device=device,
                )
                options = {"engine": setup.engine, "format": setup.fp8_format}
                limits = [
                    limit(scale, dtype, **options).long()
                    for limit in (max_in_range_code, max_unclipped_code, max_flushed_code)
                ]
                first = 0
                for tensor in chosen:
                    columns = slice(first, first + len(tensor.kv_heads))
                    first = columns.stop
                    parts = [array[:, columns].contiguous() for array in (scale, *limits)]
                    batches[tensor.layer, tensor.tensor].append(ScaleBatch(setup, numbers, *parts))
    return batches


def _same_layers(
    applied: Sequence[tuple[EngineSetup | None, AppliedScales]], setup: EngineSetup
) -> list[tuple[frozenset[int], list[int]]]:
    """Group the setup's candidates by the layers that they quantize; mostly all do all."""
    groups: dict[frozenset[int], list[int]] = {}
    for number, (own, scales) in enumerate(applied):
        if own == setup:
            layers = frozenset(key[0] for key, scale in scales.scales.items() if scale.value is not None)
            groups.setdefault(layers, []).append(number)
    return list(groups.items())


def _values(scales: AppliedScales, tensor: TensorRecord) -> list[float]:
    values = scales.of_heads(tensor.layer, tensor.tensor, tensor.kv_heads)
    assert values is not None  # a layer is quantized as a whole
    return values
