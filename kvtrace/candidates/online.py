"""online: a cache format that chooses its scales while serving, and takes none of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.coded import coded_by
from kvtrace.candidates.setup import DEFAULT_SETUP
from kvtrace.errors import InputError
from kvtrace.formats import parse_format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.formats import AnyFormat
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class OnlineScales(Candidate):
    """A cache format without loaded scales, called by a name that `parse_format` takes.

    Raises InputError: an unknown name, or a format that reads the checkpoint's scales.
    """

    serving: ServingSetup = field(default=DEFAULT_SETUP)
    """Its skipped layers; the rest does not concern it."""

    kind: ClassVar[str] = "online"

    def __post_init__(self) -> None:
        if parse_format(self.name).uses_scales:
            raise InputError(
                f"{self.name} reads the checkpoint's scales; expected a format that chooses its own"
            )

    @property
    def cache(self) -> AnyFormat:
        """Return the format."""
        return parse_format(self.name)

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return no scale beforehand for any head, and how each layer is coded."""
        return coded_by(self, self.cache, self.serving, trace)

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield one per format; one that is named twice, by whatever name, counts once."""
        for name, cache in asked.formats.items():
            if not cache.uses_scales and not cache.is_native:
                yield cls(name, asked.setup)
