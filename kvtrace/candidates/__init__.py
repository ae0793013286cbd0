"""A candidate: scales as one engine setup would apply them, bound to traces; one class per kind (`KINDS`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.candidates.artifact import ArtifactScales
from kvtrace.candidates.bf16 import Bf16
from kvtrace.candidates.candidate import Asked, Candidate
from kvtrace.candidates.captured import default_setup
from kvtrace.candidates.effective import EffectiveScales
from kvtrace.candidates.fresh import FreshScales
from kvtrace.candidates.given import GivenScales
from kvtrace.candidates.online import OnlineScales
from kvtrace.candidates.scaled_format import FormatScales
from kvtrace.candidates.setup import ServingSetup
from kvtrace.candidates.swept import SweptScales
from kvtrace.candidates.unit import UnitScales

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import Trace

__all__ = [
    "KINDS",
    "ArtifactScales",
    "Bf16",
    "Candidate",
    "EffectiveScales",
    "FormatScales",
    "FreshScales",
    "GivenScales",
    "OnlineScales",
    "ServingSetup",
    "SweptScales",
    "UnitScales",
    "standard_candidates",
]

KINDS: Final[tuple[type[Candidate], ...]] = (
    Bf16,
    EffectiveScales,
    UnitScales,
    ArtifactScales,
    GivenScales,
    SweptScales,
    FreshScales,
    FormatScales,
    OnlineScales,
)
"""In the order of a run's candidates."""


def standard_candidates(
    traces: Sequence[Trace],
    artifacts: Iterable[ScaleArtifact] = (),
    setup: ServingSetup | None = None,
    cache_dtypes: Iterable[str] = (),
    *,
    against: Path | None = None,
) -> list[Candidate]:
    """Return bf16, effective (where a cache was static FP8), unit, one per artifact, fresh scales (where
    a trace has queries), and cache formats.

    setup: one for all; None: `default_setup`. cache_dtypes: what `kvtrace.candidates.recipe.cache_of` takes;
    one that is repeated counts once, and one that reads scales has 1.0 and each artifact's. against: a
    checkpoint that those of the artifacts are compared with.
    Every candidate has a name of its own: an artifact called like another is numbered.
    Raises InputError: an unknown cache dtype, or nothing to compare. ArtifactError: no weights.
    """
    asked = Asked(traces, setup or default_setup(traces), tuple(artifacts), tuple(cache_dtypes), against)
    found = [candidate for kind in KINDS for candidate in kind.among(asked)]
    taken = {candidate.name for candidate in found if not candidate.is_given}
    return [
        replace(candidate, name=_unused_name(candidate.name, taken)) if candidate.is_given else candidate
        for candidate in found
    ]


def _unused_name(name: str, taken: set[str]) -> str:
    number, unused = 1, name
    while unused in taken:
        number += 1
        unused = f"{name}#{number}"
    taken.add(unused)
    return unused
