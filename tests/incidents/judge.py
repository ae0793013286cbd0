"""Run one incident and say whether the diagnosis names what was planted."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from incidents.bench import BASES, new_bench

if TYPE_CHECKING:
    from incidents.planting import Incident
    from kvtrace.diagnosis import Diagnosis, Finding


@dataclass(frozen=True)
class Outcome:
    """What came of one incident."""

    incident: Incident
    seed: int
    base: str
    """The captured trace that was changed."""
    strength: str
    found: tuple[str, ...]
    """Ids above note by rank, less the consequences of what was planted; too little coverage last."""
    diagnosis: Diagnosis

    @property
    def is_right(self) -> bool:
        """Whether the planted causes come first, or nothing is found where nothing was planted."""
        causes = self.incident.causes
        if not causes:
            return not any(one.severity != "note" for one in self.diagnosis.findings)
        return set(self.found[: len(causes)]) == set(causes)


def run_incident(incident: Incident, seed: int) -> Outcome:
    """Plant, replay and diagnose in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="kvtrace-incident-") as folder:
        base = BASES[seed % len(BASES)]
        bench = new_bench(seed, Path(folder), base)
        strength = incident.plant(bench)
        diagnosis = bench.diagnosed()
    return Outcome(incident, seed, base.stem, strength, _ranked(diagnosis, incident.causes), diagnosis)


def _ranked(diagnosis: Diagnosis, planted: tuple[str, ...]) -> tuple[str, ...]:
    above = [
        one.id
        for one in diagnosis.findings
        if one.severity != "note" and (one.id in planted or not set(one.explained_by) & set(planted))
    ]
    notes = [one.id for one in diagnosis.findings if is_verdict_note(one)]
    return tuple(dict.fromkeys([*above, *notes]))


def is_verdict_note(finding: Finding) -> bool:
    """Whether a note is an answer by itself: too little was captured."""
    return finding.id == "coverage" and finding.message.startswith("NOT ENOUGH")
