"""What the first screen says, as values: page, terminal, Markdown and JSON print these fields alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from kvtrace.remedies.step import Step  # noqa: TC001 -- pydantic reads the annotations

State = Literal["fault", "warning", "sound", "too few", "not measured"]
Kind = Literal[
    "as served",  # the scales that ran, with nothing against them
    "drift",  # values left the range that the scales cover
    "wrong scales",  # the scales are not those of this model, layer, head or tensor
    "not loaded",  # the engine did not use them
    "format",  # the number format or its granularity does not fit the values
    "values",  # what is wrong was so before quantization
    "what-if",  # one set of scales that did not run
    "choice",  # several that did not run
    "before/after",  # two deployments, one beside the other
    "invalid",  # nothing could be judged
]
QuestionId = Literal["scales", "format", "release"]
SIGNS: Final[dict[State, str]] = {
    "fault": "✕",
    "warning": "△",
    "sound": "✓",
    "too few": "◌",
    "not measured": "–",
}
_DOCUMENTED: Final = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class HarmedHead:
    """The one head that a report calls most harmed, wherever it shows one."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    layer: int
    kv_head: int
    tensor: Literal["k", "v"]


@dataclass(frozen=True, slots=True)
class Action:
    """What to do now."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    text: str
    """In words; empty: the command says it."""
    command: str | None
    """One command to run as it stands."""
    until: str | None
    """How to serve until that is done; None: nothing is at stake now."""
    steps: tuple[Step, ...] = ()
    """All the way to a mended deployment, in order; empty: no scales have to be made. Since 1.3."""


@dataclass(frozen=True, slots=True)
class Sure:
    """How far the answer can be relied on."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    level: Literal["high", "medium", "low"]
    text: str
    """Requests, whether these scales ran, what lacks."""


@dataclass(frozen=True, slots=True)
class Question:
    """One of the three questions that people come with."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    id: QuestionId
    question: str
    answer: str
    """A word or a few; `– …` where it was not measured."""
    because: str


@dataclass(frozen=True, slots=True)
class RangeUsed:
    """A mark on the ruler: the largest magnitude of K or of V against what its scale covers."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    candidate: str
    tensor: Literal["k", "v"]
    layer: int
    kv_head: int
    ratio: float
    """Largest |x| / covered; above `clips_from` values are clipped."""
    clips_from: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One set of scales beside the others."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    candidate: str
    state: State
    text: str
    """Where it clips, or why it could not be judged; in a few words."""
    command: str | None = None
    """What mends these scales, else what shows them alone; None: no run was kept to ask. Since 1.3."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Something that the report lacks."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    what: str
    why: str
    command: str | None
    """What would measure it; None: no command can."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The first screen."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    state: State
    kind: Kind
    headline: str
    """At most 14 words and two numbers."""
    candidate: str | None
    """The scales it is about: those that ran, or the recommended ones."""
    most_harmed: HarmedHead | None
    """The head that loses most to clipping, else the one closest to the edge; None: nothing was judged."""
    where: tuple[str, ...]
    """The most harmed head first, two more, then workload and positions."""
    matters: tuple[str, ...]
    action: Action
    sure: Sure
    questions: tuple[Question, Question, Question]
    compared: tuple[Compared, ...]
    """Every set of scales that was judged, the one of the answer first; then the default
    and the effective scales, by what they lose alone."""
    ruler: tuple[RangeUsed, ...]
    not_measured: tuple[NotMeasured, ...]
