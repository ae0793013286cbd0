"""The `[quality]` table of a `policy.toml`: how many answers may be lost. docs/quality.md has every key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 -- pydantic reads the annotations
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kvtrace.errors import PolicyError
from kvtrace.plain_text import plain
from kvtrace.policy_file import PolicyKeys, first_problem, read_policy

_Share = Annotated[float, Field(gt=0, lt=1)]
_Count = Annotated[int, Field(ge=1, le=2**31, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SegmentLimits(_Strict):
    """What one protected segment has of its own; the rest is the common one."""

    margin: _Share | None = None
    floor: _Share | None = None
    pairs: _Count | None = None


class QualityLimits(_Strict):
    """The table."""

    margin: _Share
    """Loss of pass rate that is still accepted, paired."""
    floor: _Share
    """Pass rate that must be reached. Where BF16 itself does not, nothing can be told."""
    pairs: _Count = 1
    """Fewer are too few, whatever the interval says."""
    looks: _Count = 1
    """How often results are looked at while they grow; each look gets its share of the error."""
    noise_pair: bool = True
    """Whether a second run of BF16 is required."""
    protected: tuple[str, ...] = ()
    """Segments: `name=value` of a tag, or `task=name`. All answers together are always one."""
    own: dict[str, SegmentLimits] = {}
    """By protected segment."""

    @field_validator("protected")
    @classmethod
    def _are_segments(cls, segments: tuple[str, ...]) -> tuple[str, ...]:
        for segment in segments:
            key, equals, value = segment.partition("=")
            if not (key and equals and value):
                raise ValueError(f"{plain(segment)} is expected to be name=value, such as language=de")
        if len(set(segments)) < len(segments):
            raise ValueError("a segment is there twice")
        return segments

    @model_validator(mode="after")
    def _own_are_protected(self) -> QualityLimits:
        unknown = [plain(name) for name in self.own if name not in self.protected]
        if unknown:
            raise ValueError(f"own limits of {', '.join(unknown[:5])}, which is not in protected")
        return self

    def of(self, segment: str) -> SegmentLimits:
        """Return the limits of a segment, complete."""
        own = self.own.get(segment, SegmentLimits())
        return SegmentLimits(
            margin=own.margin or self.margin, floor=own.floor or self.floor, pairs=own.pairs or self.pairs
        )


class _File(BaseModel):
    """What is read of a policy here; `kvtrace check` reads and checks the other tables."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: str = Field(min_length=1)
    date: date
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    false_discovery_rate: float = Field(default=0.05, gt=0, lt=0.5)
    quality: QualityLimits


@dataclass(frozen=True, slots=True)
class QualityPolicy:
    """Limits, and where they come from."""

    limits: QualityLimits
    confidence: float = 0.95
    false_discovery_rate: float = 0.05
    name: str | None = None
    """None, as are date and sha256: the limits were given on the command line."""
    date: str | None = None
    sha256: str | None = None


def quality_limits(**given: Any) -> QualityPolicy:
    """Return limits given on the command line. Raises PolicyError: one cannot be used."""
    try:
        return QualityPolicy(QualityLimits(**given))
    except ValidationError as error:
        raise PolicyError(first_problem(error, _KEYS)) from error


def load_quality_policy(path: Path | str) -> QualityPolicy:
    """Return the `[quality]` table of the policy at `path`.

    Raises PolicyError: no such file, no TOML, no such table, an unknown key, or a limit that cannot be used.
    """
    read = read_policy(Path(path), _File, _KEYS)
    found = read.content
    return QualityPolicy(
        found.quality,
        found.confidence,
        found.false_discovery_rate,
        found.name,
        found.date.isoformat(),
        read.sha256,
    )


_KEYS: Final = PolicyKeys(
    QualityLimits,
    {"quality": QualityLimits, "own": SegmentLimits},
    missing="a comparison of quality needs it",
)
