"""The parts of the traffic in which a head may clip: workloads, prefill, positions, generation steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.findings.finding import Head

Kind = Literal["workload", "phase", "position", "output-length"]


@dataclass(frozen=True)
class ClippedUnits:
    """Weighted vectors and clipped vectors of heads in units; a unit is one request's rows of one place."""

    heads: tuple[Head, ...]
    trials: NDArray[np.float64]
    """[heads, units]"""
    events: NDArray[np.float64]
    request: NDArray[np.int64]
    """[units], numbered from 0."""
    workload: NDArray[Any]
    position_octave: NDArray[np.int64]
    step_octave: NDArray[np.int64]
    """floor(log2(generation step + 1)); -1 in the prompt."""


@dataclass(frozen=True)
class Split:
    """One stratum against the rest."""

    kind: Kind
    inside: NDArray[np.bool_]
    """[units]"""
    names: tuple[str, ...] = ()
    """The workloads; `prefill`."""
    first: int = 0
    """The octave from which on."""
    end: int | None = None
    """The octave that is no longer in it; None: to the last."""

    @property
    def key(self) -> tuple[Kind, tuple[str, ...], int, int | None]:
        """Return what names it."""
        return self.kind, self.names, self.first, self.end

    @property
    def num_choices(self) -> int:
        """Return how many numbers or names it takes to say it."""
        return len(self.names) if self.names else 1 + (self.end is not None)


@dataclass(frozen=True)
class Stratum:
    """One split, or the union of two: two drifts in the same heads hide each other."""

    parts: tuple[Split, ...]
    inside: NDArray[np.bool_]
    """[units]"""

    @property
    def complexity(self) -> int:
        """Return 0 for a workload, a phase or a start; 1 for a band or several workloads; 2 for two parts."""
        return 2 if len(self.parts) > 1 else int(self.parts[0].num_choices > 1)


def strata_of(units: ClippedUnits) -> list[Stratum]:
    """Return every part of the traffic that can be told from the rest, then every two of different kinds."""
    singles = _splits(units)
    return singles + _pairs(singles)


def _splits(units: ClippedUnits) -> list[Stratum]:
    """Return the parts of the traffic, the simplest first: of parts that tell alike the first is taken."""
    position, step = units.position_octave, units.step_octave
    found = [Split("workload", np.isin(units.workload, names), names) for names in _workloads(units)]
    found.append(Split("phase", step < 0, ("prefill",)))
    found += [
        Split("output-length", step >= least, first=least)
        for least in range(max(int(step.min()) + 1, 0), int(step.max()) + 1)
    ]
    first, last = int(position.min()), int(position.max())
    found += [Split("position", position >= least, first=least) for least in range(first + 1, last + 1)]
    found += [
        Split(
            "position", (position >= least) & (position < end), first=0 if least == first else least, end=end
        )
        for least, end in combinations(range(first, last + 1), 2)
    ]
    found.sort(key=lambda one: one.num_choices)
    return [Stratum((one,), one.inside) for one in found if 0 < one.inside.sum() < len(one.inside)]


def _workloads(units: ClippedUnits) -> Iterator[tuple[str, ...]]:
    """Yield each workload, and the two, three, … that clip most of the time.

    Of several that drift each is held against those that do not, not against all others.
    """
    names = sorted(set(units.workload.tolist()))
    yield from ((name,) for name in names)
    events, trials = units.events.sum(axis=0), units.trials.sum(axis=0)
    rate = {
        name: events[units.workload == name].sum() / max(trials[units.workload == name].sum(), 1.0)
        for name in names
    }
    by_rate = sorted(names, key=lambda name: -rate[name])
    yield from (tuple(sorted(by_rate[:count])) for count in range(2, len(names)))


def _pairs(singles: Sequence[Stratum]) -> list[Stratum]:
    """Return what two parts of different kinds make together: two drifts in one head hide each other."""
    simple = [one for one in singles if one.parts[0].num_choices == 1]
    return [
        Stratum(one.parts + other.parts, one.inside | other.inside)
        for one, other in combinations(simple, 2)
        if one.parts[0].kind != other.parts[0].kind and not (one.inside | other.inside).all()
    ]
