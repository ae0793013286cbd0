"""What a report on two deployments says, as plain values: for JSON, and for every printer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from kvtrace.report.answer.model import Answer  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.report.sections import Report  # noqa: TC001

BEFORE_AFTER_SCHEMA_VERSION: Final = "1.0"
_DOCUMENTED: Final = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class ScalesChange:
    """What the scales of the two deployments cover, over the heads that both have."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    num_heads: int
    """Heads that both have scales for, K and V counted apart."""
    num_changed: int
    """Those that cover something else by more than a bf16 copy of a scale may."""
    least_ratio: float | None
    """Covered after / covered before, the smallest of those that changed; None: none did."""
    largest_ratio: float | None
    num_only_before: int
    """Heads that have scales before alone."""
    num_only_after: int


@dataclass(frozen=True, slots=True)
class HeadChange:
    """One head in both deployments."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    layer: int
    kv_head: int
    tensor: Literal["k", "v"]
    clip_error_before: float
    """Share of its energy, Σ x², that clipping costs; 0 to 1."""
    clip_error_after: float
    range_used_before: float
    """Largest |x| / covered."""
    range_used_after: float
    covered_ratio: float
    """Covered after / covered before."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was recorded of both deployments, or of one, and is not the same."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    what: str
    before: str | None
    """None: not recorded."""
    after: str | None


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two deployments, told one beside the other."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    schema_version: str
    kvtrace_version: str
    """That of the run after."""
    answer: Answer
    """The first screen; every output prints it. Its state is that of the deployment after."""
    scales: ScalesChange
    clips_before: int
    """Heads that clip enough to matter."""
    clips_after: int
    num_heads_before: int
    num_heads_after: int
    heads: tuple[HeadChange, ...]
    """Heads of both whose loss changed, the largest change first; at most 20."""
    num_worse: int
    """Heads of both that lose more to clipping now."""
    num_better: int
    differs: tuple[Difference, ...]
    """Besides what the scales cover: of model, engine, setup and traffic."""
    same: tuple[str, ...]
    """What was recorded of both and is the same."""
    before: Report
    after: Report
