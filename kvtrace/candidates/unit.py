"""unit: the scales that an engine uses when it is given none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import scale_keys, static_scales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.setup import DEFAULT_SETUP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class UnitScales(Candidate):
    """1.0 everywhere."""

    name: str = field(default="unit", init=False)
    setup: ServingSetup = DEFAULT_SETUP

    kind: ClassVar[str] = "unit"
    precedence: ClassVar[int] = 2

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return 1.0 for every head. Raises InvalidCandidateError: the setup cannot be."""
        self.setup.require_possible()
        values = dict.fromkeys(scale_keys(trace), 1.0)
        return static_scales(self, trace, values, dict.fromkeys(values, "unit"))

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield the one there is."""
        yield cls(asked.setup)
