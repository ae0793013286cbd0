"""bf16: the unquantized baseline, the values as captured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import AppliedScales, scale_keys
from kvtrace.candidates.candidate import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.candidate import Asked
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Bf16(Candidate):
    """A cache in the model's own dtype."""

    name: str = field(default="bf16", init=False)

    kind: ClassVar[str] = "bf16"
    is_baseline: ClassVar[bool] = True

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return no scale for any head."""
        values = dict.fromkeys(scale_keys(trace))
        origins = dict.fromkeys(values, "unquantized")
        return AppliedScales(
            self, values, origins, None, None, hypothetical=trace.cache_kind != "unquantized"
        )

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:  # noqa: ARG003 -- it is there in any case
        """Yield the one there is."""
        yield cls()
