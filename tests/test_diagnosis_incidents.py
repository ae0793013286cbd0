"""Planted incidents, a few with pinned seeds; `make incidents` runs all of them with new ones."""

from __future__ import annotations

import pytest
from incidents import artifact_plants, combined_plants, healthy, value_plants
from incidents.judge import run_incident
from incidents.planting import INCIDENTS

__all__ = ["artifact_plants", "combined_plants", "healthy", "value_plants"]

SEED = 7_000
PLANTED = (
    "engine used 1.0 in one layer",
    "engine collapsed heads to their maximum",
    "keys renamed",
    "K heads in another order",
    "keys calibrated before RoPE",
    "calibrated on short positions",
    "K of one head clips",
    "V of all heads clips",
    "one head sets the scale per tensor",
    "scales too wide in some heads",
    "a channel beyond what FP8 spans",
    "the long workload outgrew its scales",
    "V outgrows its scales beyond a position",
    "values outgrow their scales with output length",
    "a workload's K and a position's V",
)
SOUND = ("percentile 99.9", "few requests", "other lengths per class", "heavy tails, covered", "wide scales")


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_comes_first(name: str) -> None:
    outcome = run_incident(*_pinned(name))
    assert outcome.incident.causes
    assert outcome.is_right, (outcome.strength, outcome.found)


@pytest.mark.parametrize("name", SOUND)
def test_nothing_above_a_note_is_found_where_nothing_was_planted(name: str) -> None:
    outcome = run_incident(*_pinned(name))
    assert not outcome.incident.causes
    assert outcome.is_right, (outcome.strength, outcome.found)


def test_there_are_enough_incidents_for_a_table() -> None:
    planted = [one for one in INCIDENTS if one.causes]
    assert len(planted) >= 30
    assert len(INCIDENTS) - len(planted) >= 12
    assert sum(len(one.causes) > 1 for one in planted) >= 5
    assert len({one.name for one in INCIDENTS}) == len(INCIDENTS)


def _pinned(name: str):  # type: ignore[no-untyped-def]  # (Incident, int), as run_incident takes them
    number = next(place for place, one in enumerate(INCIDENTS) if one.name == name)
    return INCIDENTS[number], SEED + number
