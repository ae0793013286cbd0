"""The list of plants: each changes a healthy bench and says how strongly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from incidents.bench import Bench

    Plant = Callable[[Bench], str]


@dataclass(frozen=True)
class Incident:
    """One planted case. causes: finding ids that must come first, in any order; empty: healthy."""

    name: str
    causes: tuple[str, ...]
    plant: Plant


INCIDENTS: list[Incident] = []


def incident(name: str, *causes: str) -> Callable[[Plant], Plant]:
    """Register a plant; one finding of each id in `causes` must precede every other above note."""

    def register(plant: Plant) -> Plant:
        INCIDENTS.append(Incident(name, causes, plant))
        return plant

    return register
