"""swept: static scales made of the very traces that they are tried on, to see what a choice of rule costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import static_scales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.setup import DEFAULT_SETUP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class SweptScales(Candidate):
    """One number per layer, global KV head and tensor, and the rule that they follow."""

    scales: Mapping[ScaleKey, float] = field()
    rule: str = ""
    """In words."""
    setup: ServingSetup = DEFAULT_SETUP

    kind: ClassVar[str] = "swept"

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return the scales. Raises InvalidCandidateError: the setup cannot be."""
        self.setup.require_possible()
        origins = dict.fromkeys(self.scales, self.name)
        return static_scales(
            self, trace, self.scales, origins, granularity="tensor", note=f"{self.rule}, made of these traces"
        )
