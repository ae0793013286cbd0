"""effective: the scales that the captured engine really used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import static_scales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.captured import captured_setup, effective_values
from kvtrace.candidates.setup import DEFAULT_SETUP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class EffectiveScales(Candidate):
    """Each trace's own scales, under one setup."""

    name: str = field(default="effective", init=False)
    setup: ServingSetup = DEFAULT_SETUP

    kind: ClassVar[str] = "effective"
    precedence: ClassVar[int] = 1

    @classmethod
    def of(cls, trace: Trace) -> Self:
        """Return them under the setup of the trace's engine. Raises InputError: kvtrace cannot replay it."""
        return cls(captured_setup(trace))

    def scales_for(self, trace: Trace) -> AppliedScales | None:
        """Return what the trace's engine used; None where its cache was not static FP8."""
        if trace.cache_kind != "static_fp8":
            return None
        self.setup.require_possible()
        values = effective_values(trace)
        origins = {key: "skipped" if value is None else "effective" for key, value in values.items()}
        return static_scales(self, trace, values, origins)

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield one if any trace's cache was static FP8."""
        if any(trace.cache_kind == "static_fp8" for trace in asked.traces):
            yield cls(asked.setup)
