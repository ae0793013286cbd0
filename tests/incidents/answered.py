"""The cases with right answers, by point; importing a file of them registers them."""

from __future__ import annotations

from incidents import (
    blame_plants,
    cause_plants,
    channel_plants,
    threshold_plants,
    what_if_plants,
    where_plants,
)
from incidents.answers import CASES, Case

_FILES = (blame_plants, what_if_plants, where_plants, channel_plants, threshold_plants, cause_plants)


def answered_cases() -> list[Case]:
    """Return every case."""
    assert all(_FILES)
    return CASES
