"""Run one incident and say whether what was planted is what is named."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from incidents.base import BASES
from incidents.bench import Bench, new_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from incidents.planting import Incident, Plant
    from kvtrace.findings.diagnose import Diagnosis

HOW_JUDGED = """\
right   the planted causes are the first findings, in any order, before all others but
        their consequences. Findings are taken as `kvtrace report` ranks them; an id counts
        once. A consequence is a finding that the report itself lists as explained by a
        planted cause; only k-clips, v-clips, outlier-head, no-scale-helps, too-wide and the
        drifts ever are. "set aside": right only because consequences do not count.
note    the cause is never more than a note, so it cannot come first: right if the verdict
        is "not the scales" with the note among the findings, and not so in the same case
        without it.
scales  a rule that the report leaves to the run's own numbers: judged as `kvtrace scales`
        lists findings, nothing set aside.
healthy right if no finding is above a note and not-the-scales comes first."""


@dataclass(frozen=True)
class Plan:
    """What decides a case."""

    seed: int
    base: Path
    hardest: Literal["low", "high"] | None


@dataclass(frozen=True)
class Outcome:
    """What came of one incident."""

    incident: Incident
    seed: int
    base: str
    """The captured trace that was changed."""
    strength: str
    found: tuple[str, ...]
    """Ids by rank, less the consequences of what was planted."""
    listed: tuple[str, ...]
    """Ids by rank, all of them."""
    is_right: bool
    beyond_limits: tuple[str, ...] = ()
    """What of the report's answer does not fit a first screen."""

    @property
    def is_right_unaided(self) -> bool:
        """Whether the planted causes come first with their consequences counted too."""
        return set(self.listed[: len(self.incident.causes)]) == set(self.incident.causes)


def run_incident(incident: Incident, seed: int, *, hardest: bool = False) -> Outcome:
    """Plant, replay and diagnose in a directory of its own, all names exchanged.

    hardest: the faintest strength of a fault, the strongest of what is healthy; else it is drawn.
    """
    base = BASES[seed % len(BASES)]
    end: Literal["low", "high"] = "high" if incident.is_healthy else "low"
    plan = Plan(seed, base, end if hardest else None)
    with tempfile.TemporaryDirectory(prefix="kvtrace-incident-") as folder:
        bench, strength = _planted(incident.plant, plan, Path(folder))
        if incident.seen_by == "scales":
            audited = bench.audited().findings
            found = listed = _ids([one.id for one in audited if one.severity != "note"])
            is_right = _come_first(incident.causes, found)
            if incident.control is not None:
                is_right = not found and set(incident.causes) <= {one.id for one in audited}
        else:
            diagnosis = bench.diagnosed()
            listed = _ids([one.id for one in diagnosis.findings])
            found = _without_consequences(diagnosis, incident.causes)
            is_right = _is_right(incident, diagnosis, found)
    limits = bench.beyond_limits
    if incident.control is not None and is_right:
        with tempfile.TemporaryDirectory(prefix="kvtrace-incident-") as folder:
            control, _ = _planted(incident.control, plan, Path(folder))
            if incident.seen_by == "scales":
                is_right = not set(incident.causes) & {one.id for one in control.audited().findings}
            else:
                is_right = not _notes(control.diagnosed(), incident.causes)
    return Outcome(incident, seed, base.stem, strength, found, listed, is_right, limits)


def _planted(plant: Plant, plan: Plan, folder: Path) -> tuple[Bench, str]:
    bench = new_bench(plan.seed, folder, plan.base)
    bench.hardest = plan.hardest
    bench.disguise()
    return bench, plant(bench)


def _is_right(incident: Incident, diagnosis: Diagnosis, found: Sequence[str]) -> bool:
    is_clean = all(one.severity == "note" for one in diagnosis.findings)
    if incident.control is not None:
        return is_clean and _notes(diagnosis, incident.causes)
    return _come_first(incident.causes, found) and (is_clean or not incident.is_healthy)


def _come_first(causes: tuple[str, ...], found: Sequence[str]) -> bool:
    return set(found[: len(causes)]) == set(causes)


def _notes(diagnosis: Diagnosis, causes: tuple[str, ...]) -> bool:
    """Whether the verdict is that it is not the scales, and these are noted."""
    noted = {one.id for one in diagnosis.findings if one.severity == "note"}
    return diagnosis.verdict.status == "sound" and set(causes) <= noted


def _without_consequences(diagnosis: Diagnosis, planted: tuple[str, ...]) -> tuple[str, ...]:
    return _ids(
        [
            one.id
            for one in diagnosis.findings
            if one.id in planted or not set(one.explained_by) & set(planted)
        ]
    )


def _ids(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))
