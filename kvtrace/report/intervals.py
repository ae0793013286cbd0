"""The 95 % intervals of a stratum's shares, over requests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Intervals:
    """Low and high ends; null: too few requests to tell, or a run without what they need."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    vectors_clipped_low: float | None
    """Of the share of vectors with a clipped value, over requests."""
    vectors_clipped_high: float | None
    clipped_low: float | None
    """Of the share of values clipped, over request groups (kvtrace replay --intervals), as those below."""
    clipped_high: float | None
    clip_error_low: float | None
    """Of the share of the squared error that is due to clipping."""
    clip_error_high: float | None
    sqnr_low_db: float | None
    sqnr_high_db: float | None


def intervals_of(row: Mapping[str, Any]) -> Intervals:
    """Return the intervals in a row of `by_workload` or `by_position`; what it does not have is None."""
    return Intervals(**{field.name: row.get(field.name) for field in fields(Intervals)})
