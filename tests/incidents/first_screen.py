"""Whether the report's answer to every case fits the first screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Answered(Protocol):
    """A case whose report was made."""

    @property
    def seed(self) -> int: ...
    @property
    def strength(self) -> str: ...
    @property
    def beyond_limits(self) -> tuple[str, ...]: ...


def print_first_screens(cases: Sequence[Answered]) -> bool:
    """Print how many answers fit, and what of the others does not; return whether all do."""
    long = [one for one in cases if one.beyond_limits]
    print(f"answers: {len(cases) - len(long)} of {len(cases)} fit the first screen")
    for one in long:
        print(f"  seed {one.seed}, {one.strength}: {'; '.join(one.beyond_limits)}")
    return not long
