"""Scales given as numbers, from a notebook or a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import scale_keys, static_scales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.setup import DEFAULT_SETUP
from kvtrace.errors import InvalidCandidateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class GivenScales(Candidate):
    """One number per layer, global KV head and tensor."""

    scales: Mapping[ScaleKey, float] = field()
    setup: ServingSetup = DEFAULT_SETUP

    kind: ClassVar[str] = "artifact"
    is_given: ClassVar[bool] = True

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return the numbers of the trace's heads. Raises InvalidCandidateError: one is missing too."""
        self.setup.require_possible()
        keys = list(scale_keys(trace))
        missing = [key for key in keys if key not in self.scales]
        if missing:
            layer, head, tensor = missing[0]
            raise InvalidCandidateError(
                f"no {tensor} scale for layer {layer}, KV head {head}, which {trace.path} has; "
                "were the scales made for another model?",
                "missing-scale",
            )
        values = {key: self.scales[key] for key in keys}
        return static_scales(self, trace, values, dict.fromkeys(keys, "given"))
