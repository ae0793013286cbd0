"""Plants with their right answers: what must come first, in which tensor, layers and traffic, what mends it.

The answers were written before the rules that give them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from incidents.bench import Bench
    from kvtrace.findings.finding import Remedy, Severity, Where

    Planted = Callable[[Bench], "Answer"]
    Sound = Callable[[Bench], str]

QWEN, LLAMA, WIDE, MANY, FORWARD = (
    "qwen-28x4x128",
    "llama-32x8x128",
    "wide-18x1x256",
    "many-12x12x64",
    "forward",
)
EVERY = (QWEN, LLAMA, WIDE, MANY, FORWARD)
SEVERAL_HEADS = (QWEN, LLAMA, MANY, FORWARD)
OF_LANGUAGES = (QWEN, LLAMA, FORWARD)
OUTLIERS = (QWEN, FORWARD)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a diagnosis must say."""

    strength: str
    first: tuple[str, ...]
    """Ids any of which may come first."""
    beside: tuple[str, ...] = ()
    """Ids that may be above a note too, without being explained."""
    never_explained: tuple[str, ...] = ()
    """Ids that no finding may explain away."""
    severities: tuple[Severity, ...] = ("error", "warning")
    """Of the first; `note` alone: nothing may be above a note, and the id is among the notes."""
    tensor: Literal["k", "v"] | None = None
    """None: both, or not asked."""
    layers: frozenset[int] | None = None
    where: Where | None = None
    """The part of the traffic in which values were changed; workloads as the trace calls them."""
    remedies: tuple[Remedy, ...] = ()
    """Any of them; empty: not asked."""
    candidate: str | None = None
    """The scales that the first finding must be about, as the run calls them."""
    sound: tuple[str, ...] = ()
    """Scales that must be called sound."""
    refusal: str | None = None
    """What a refusal must name, where no diagnosis can be made."""


@dataclass(frozen=True)
class Case:
    """One planted case, or one in which nothing is wrong."""

    point: int
    """Of the list that these cases were written from."""
    name: str
    bases: tuple[str, ...]
    plant: Planted | Sound
    is_sound: bool


CASES: list[Case] = []


def planted(point: int, name: str, bases: tuple[str, ...] = EVERY) -> Callable[[Planted], Planted]:
    """Register a plant; it returns its right answer."""

    def register(plant: Planted) -> Planted:
        CASES.append(Case(point, name, bases, plant, is_sound=False))
        return plant

    return register


def sound(point: int, name: str, bases: tuple[str, ...] = EVERY) -> Callable[[Sound], Sound]:
    """Register a case in which no finding above a note may come; it returns how strong it is."""

    def register(plant: Sound) -> Sound:
        CASES.append(Case(point, name, bases, plant, is_sound=True))
        return plant

    return register
