"""Planted incidents, a few with pinned seeds; `make incidents` runs all of them with new ones."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import incidents
import pytest
from incidents import all_incidents
from incidents.base import BASES
from incidents.judge import run_incident
from incidents.planting import NOT_THE_SCALES

from kvtrace.findings.artifact.rules import RULES as AUDITED
from kvtrace.findings.rules import DIAGNOSED
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

INCIDENTS = all_incidents()
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
    "weights differ from those of --against",
    "scales whose shape the engine refuses",
    "a scale too large to be a range",
    "K clips, by the artifact's audit",
    "scales stored in bfloat16",
    "no other scale would do better",
    "the engine's cache was fp8_e5m2",
)
SOUND = ("percentile 99.9", "few requests", "other lengths per class", "heavy tails, covered", "wide scales")


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_comes_first_or_is_noted_where_it_is_never_more(name: str) -> None:
    outcome = run_incident(*_pinned(name))
    assert not outcome.incident.is_healthy
    assert outcome.is_right, (outcome.strength, outcome.found)


@pytest.mark.parametrize("name", SOUND)
def test_nothing_above_a_note_is_found_where_nothing_was_planted(name: str) -> None:
    outcome = run_incident(*_pinned(name))
    assert outcome.incident.is_healthy
    assert outcome.is_right, (outcome.strength, outcome.found)


def test_a_diagnosis_that_names_another_cause_or_none_is_judged_wrong() -> None:
    k_clips, seed = _pinned("K of one head clips")
    for wrong in ("v-clips", NOT_THE_SCALES):
        assert not run_incident(replace(k_clips, causes=(wrong,)), seed).is_right
    noted, seed = _pinned("scales stored in bfloat16")
    assert not run_incident(replace(noted, control=noted.plant), seed).is_right


def test_what_the_incidents_are_planted_in_is_sound_and_names_no_path_of_a_machine() -> None:
    for base in BASES:
        open_trace(base)
        content = json.loads((base / "trace.json").read_text())
        assert not Path(content["model"]["hf_config"]["_name_or_path"]).is_absolute()
        folders = "/tmp/", "/home/", f"{Path.home()}/"
        assert not [text for text in _texts(content) if text.startswith(folders)]


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for one in content.values() if isinstance(content, dict) else content:
            yield from _texts(one)


def test_there_are_enough_incidents_for_a_table() -> None:
    planted = [one for one in INCIDENTS if not one.is_healthy]
    assert len(planted) >= 30
    assert len(INCIDENTS) - len(planted) >= 12
    assert sum(len(one.causes) > 1 for one in planted) >= 5
    assert len({one.name for one in INCIDENTS}) == len(INCIDENTS)


def answered_ids() -> set[str]:
    """Ids that the right answers of `*_plants.py` name."""
    files = Path(incidents.__file__).parent.glob("*_plants.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    named = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return named & {rule.id for rule in DIAGNOSED}


def test_every_finding_that_a_rule_can_make_is_planted() -> None:
    by_report = {cause for one in INCIDENTS if one.seen_by == "report" for cause in one.causes}
    by_report |= answered_ids()
    by_scales = {cause for one in INCIDENTS if one.seen_by == "scales" for cause in one.causes}
    assert {rule.id for rule in DIAGNOSED} == by_report
    assert {rule.id for rule in AUDITED if rule.in_run != "passed on"} == by_scales


def _pinned(name: str):  # type: ignore[no-untyped-def]  # (Incident, int), as run_incident takes them
    number = next(place for place, one in enumerate(INCIDENTS) if one.name == name)
    return INCIDENTS[number], SEED + number
