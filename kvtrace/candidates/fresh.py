"""fresh: static scales that just cover a trace with queries: what FP8 itself does, without stale scales."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvtrace.candidates.applied import scale_keys, static_scales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.setup import DEFAULT_SETUP
from kvtrace.numerics import find_format
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.trace.queries import can_be_attended

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class FreshScales(Candidate):
    """The largest magnitude of each layer's K and V, over the largest that the format holds."""

    name: str = field(default="fresh scales", init=False)
    setup: ServingSetup = DEFAULT_SETUP

    kind: ClassVar[str] = "fresh"

    def scales_for(self, trace: Trace) -> AppliedScales | None:
        """Return one scale a layer and tensor; None: the trace has no queries to judge it by.

        Rows that were kept for attention alone are covered too. Raises InvalidCandidateError: the setup
        cannot be. IntegrityError: a chunk is missing or damaged.
        """
        if not can_be_attended(trace):
            return None
        self.setup.require_possible()
        most = find_format(self.setup.fp8_format).max_value
        amax = _largest(trace)
        found = {
            (layer, head, tensor): (amax[layer, tensor] or most) / most
            for layer, head, tensor in scale_keys(trace)
        }
        return static_scales(
            self,
            trace,
            found,
            dict.fromkeys(found, self.name),
            granularity="tensor",
            note="they just cover the largest magnitudes of this trace",
        )

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield the one there is, where a trace has queries."""
        if any(can_be_attended(trace) for trace in asked.traces):
            yield cls(asked.setup)


def _largest(trace: Trace) -> dict[tuple[int, str], float]:
    """Return the largest finite magnitude of each layer's K and V, (layer, "k" | "v") → ≥ 0."""
    found = {(layer, tensor): 0.0 for layer in trace.layers for tensor in "kv"}
    for store in (*trace.ranks, *trace.attention.context):
        for layer, tensor, spec in store.tensor_specs():
            for chunk in range(store.num_chunks):
                bits = store.read_chunk(spec, chunk)
                codes = bits.view(np.uint32) & 0x7FFFFFFF if layer.dtype == "float32" else bits & 0x7FFF
                codes[codes > MAX_FINITE_CODE[layer.dtype]] = 0
                largest = float(magnitudes_of(codes.max(keepdims=True).reshape(1), layer.dtype)[0])
                found[layer.index, tensor] = max(found[layer.index, tensor], largest)
    return found
