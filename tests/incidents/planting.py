"""The list of plants: each changes a healthy bench and says how strongly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from incidents.bench import Bench

    Plant = Callable[[Bench], str]

NOT_THE_SCALES: Final = "not-the-scales"


@dataclass(frozen=True)
class Incident:
    """One planted case."""

    name: str
    causes: tuple[str, ...]
    """Finding ids that must come first, in any order."""
    plant: Plant
    seen_by: Literal["report", "scales"] = "report"
    """The command that is asked. `scales`: for rules that `kvtrace report` does not run."""
    control: Plant | None = None
    """For a cause that is never more than a note: the same without it, where it must not be noted."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong here."""
        return self.causes == (NOT_THE_SCALES,)


INCIDENTS: list[Incident] = []


def incident(
    name: str, *causes: str, seen_by: Literal["report", "scales"] = "report", control: Plant | None = None
) -> Callable[[Plant], Plant]:
    """Register a plant; the fields are those of `Incident`."""

    def register(plant: Plant) -> Plant:
        INCIDENTS.append(Incident(name, causes, plant, seen_by, control))
        return plant

    return register


def healthy(name: str) -> Callable[[Plant], Plant]:
    """Register a case in which no finding above a note may come."""
    return incident(name, NOT_THE_SCALES)
