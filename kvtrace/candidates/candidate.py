"""A candidate: one row of a comparison, such as an artifact's scales as one engine would apply them.

One class per kind, each in a file of its own, with `scales_for` to write; `KINDS` lists them. What a kind
does not have stays None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.recipe import cache_of
from kvtrace.errors import InputError
from kvtrace.formats import LayeredFormat
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.formats import AnyFormat
    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Candidate(ABC):
    """What is compared in a run."""

    name: str
    """Unique in its run."""

    kind: ClassVar[str]
    """The `kind` column of the run's candidates."""
    is_given: ClassVar[bool] = False
    """Whether its scales are the user's own. A replay with such candidates needs a valid one among them."""
    is_baseline: ClassVar[bool] = False
    """Whether it is what others are held against: the values as captured."""
    precedence: ClassVar[int] = 0
    """A run is about its candidate of the lowest number, if there is one such."""

    @property
    def setup(self) -> ServingSetup | None:
        """Return how static scales are applied; None: it has none."""
        return None

    @property
    def artifact(self) -> ScaleArtifact | None:
        """Return what its scales are read from; None: from no artifact."""
        return None

    @property
    def cache(self) -> AnyFormat | None:
        """Return the cache format where it is another than static FP8 throughout; None: it is not."""
        return None

    @property
    def engine(self) -> str | None:
        """Return the numerics replayed; None where nothing is quantized."""
        if self.setup:
            return self.setup.engine
        return self.cache.product if self.cache else None

    @property
    def format(self) -> str | None:
        """Return the cache's format; None where nothing is quantized."""
        if self.cache:
            return self.cache.name
        return self.setup.fp8_format if self.setup else None

    @abstractmethod
    def scales_for(self, trace: Trace) -> AppliedScales | None:
        """Return its scales for the trace's layers, checked; None: it has none there.

        Raises InvalidCandidateError: a scale is 0, negative, NaN, inf or too large, belongs to another model,
        or the engine cannot apply it.
        """

    @classmethod
    def among(cls, asked: Asked) -> Iterable[Self]:  # noqa: ARG003 -- of its kinds
        """Yield the candidates of this kind that a replay compares; a kind made by hand alone has none."""
        return ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks to compare."""

    traces: Sequence[Trace]
    setup: ServingSetup
    """One for all: candidates then differ in their scales alone, and compare with what really ran."""
    artifacts: Sequence[ScaleArtifact] = ()
    cache_dtypes: Sequence[str] = ()
    """What `kvtrace.candidates.recipe.cache_of` takes."""
    against: Path | None = None
    """A checkpoint that those of the artifacts are compared with."""

    @property
    def formats(self) -> dict[str, AnyFormat]:
        """Return the formats asked for by the name given first.

        Raises InputError: one is unknown, or lists layers that no model of the traces has.
        """
        num_layers = max(trace.record.model.num_layers for trace in self.traces)
        found: dict[str, AnyFormat] = {}
        for name in self.cache_dtypes:
            cache = cache_of(name)
            if isinstance(cache, LayeredFormat) and (last := cache.listed[-1][0]) >= num_layers:
                raise InputError(
                    f"cache dtype {plain(name, 60)!r}: lists layer {last}, the model has layers 0 to "
                    f"{num_layers - 1}"
                )
            if cache not in found.values():
                found[name] = cache
        return found
