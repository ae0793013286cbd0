"""The candidates' scales as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.trace.profile_format import TensorRecord


@dataclass(frozen=True, slots=True)
class ScaleBatch:
    """Some candidates with one setup, in one layer, K or V."""

    setup: ServingSetup
    numbers: NDArray[np.int64]
    """[candidate], their places along the candidate axis of the sums."""
    scale: NDArray[np.float32]
    """[candidate, kv_head]."""

    def part(self, candidates: slice, heads: slice = slice(None)) -> ScaleBatch:
        """Return some of the candidates, in some of the heads."""
        return ScaleBatch(self.setup, self.numbers[candidates], self.scale[candidates, heads])


def scales_of_tensor(applied: Sequence[AppliedScales], tensor: TensorRecord) -> list[ScaleBatch]:
    """Return the candidates that quantize one layer, K or V, one batch per setup."""
    found: dict[ServingSetup, tuple[list[int], list[float]]] = {}
    for number, scales in enumerate(applied):
        setup = scales.setup_of(tensor.layer, tensor.tensor)
        if setup is not None:
            own = scales.of_heads(tensor.layer, tensor.tensor, tensor.kv_heads)
            if own is not None:
                numbers, values = found.setdefault(setup, ([], []))
                numbers.append(number)
                values.extend(own)
    return [
        ScaleBatch(setup, np.array(numbers), np.array(values, np.float32).reshape(len(numbers), -1))
        for setup, (numbers, values) in found.items()
    ]
