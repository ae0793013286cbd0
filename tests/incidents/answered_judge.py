"""Plant one case with a right answer, diagnose it, and count apart what is wrong with what was said."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from incidents.answered_base import answered_bench
from incidents.answers import Answer, Case
from kvtrace.errors import KVTraceError
from kvtrace.findings.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.findings.diagnose import Diagnosis
    from kvtrace.findings.finding import Finding, Where

HOW_ANSWERED = """\
cause        a right id comes first, as bad as it should be and about the right scales
symptom      what is lost, or where, comes first; the cause later or never
other cause  a wrong one comes first
missed       nothing above a note
refused      an error instead of a diagnosis
Apart from that: place (tensor, layers, part of the traffic), remedy, consequences that are explained,
and findings above a note beside the cause that nothing explains.
healthy: right if no finding is above a note."""

_SHOWING = {rule.id for rule in RULES if rule.role in ("symptom", "drift", "circumstance")}
_OCTAVES_OFF = 1.0
"""By which a position or a step may be missed: traces are counted by octaves."""


@dataclass(frozen=True)
class Judged:
    """What came of one case."""

    case: Case
    seed: int
    base: str
    strength: str
    verdict: str
    """cause, symptom, other cause, missed, refused; of a healthy case: sound or alarm."""
    listed: tuple[str, ...]
    """Ids above a note, by rank."""
    wrong_place: str = ""
    wrong_remedy: str = ""
    explained: tuple[str, ...] = ()
    """Ids above a note that another finding explains."""
    unexplained: tuple[str, ...] = ()
    """Ids above a note beside the cause that nothing explains, or that something explains and must not."""
    beyond_limits: tuple[str, ...] = ()
    """What of the report's answer does not fit a first screen."""

    @property
    def is_first(self) -> bool:
        """Whether the cause is first, or a healthy case without alarm."""
        return self.verdict in ("cause", "sound")

    @property
    def is_right(self) -> bool:
        """Whether nothing at all is wrong."""
        return self.is_first and not (self.wrong_place or self.wrong_remedy or self.unexplained)


def judge(case: Case, seed: int, *, hardest: bool = False) -> Judged:
    """Plant a case, all names exchanged, and judge what the diagnosis says."""
    base = case.bases[seed % len(case.bases)]
    with tempfile.TemporaryDirectory(prefix="kvtrace-incident-") as folder:
        bench = answered_bench(case, seed, Path(folder))
        if hardest:
            bench.hardest = "high" if case.is_sound else "low"
        bench.disguise()
        planted = case.plant(bench)
        strength = planted.strength if isinstance(planted, Answer) else planted
        try:
            diagnosis = bench.diagnosed()
        except KVTraceError as error:
            is_told = isinstance(planted, Answer) and (planted.refusal or "\n") in str(error)
            verdict = "cause" if is_told else "refused"
            return Judged(case, seed, base, strength, verdict, (type(error).__name__, str(error)[:200]))
    if isinstance(planted, Answer):
        judged = _judged(case, seed, base, planted, diagnosis)
    else:
        listed = _above_a_note(diagnosis)
        ids = tuple(dict.fromkeys(one.id for one in listed))
        judged = Judged(case, seed, base, strength, "alarm" if listed else "sound", ids)
    return replace(judged, beyond_limits=bench.beyond_limits)


def _judged(case: Case, seed: int, base: str, answer: Answer, diagnosis: Diagnosis) -> Judged:
    listed = _above_a_note(diagnosis)
    ids = tuple(dict.fromkeys(one.id for one in listed))
    verdict = _verdict(answer, diagnosis, listed)
    if verdict != "cause":
        return Judged(case, seed, base, answer.strength, verdict, ids)
    if "error" not in answer.severities and "warning" not in answer.severities:
        first = next(one for one in diagnosis.findings if one.id in answer.first)
    else:
        first = listed[0]
    others = [one for one in listed if one.id not in answer.first]
    return Judged(
        case,
        seed,
        base,
        answer.strength,
        verdict,
        ids,
        wrong_place=_wrong_place(answer, first),
        wrong_remedy=f"{first.remedy}" if answer.remedies and first.remedy not in answer.remedies else "",
        explained=tuple(dict.fromkeys(one.id for one in others if one.explained_by)),
        unexplained=tuple(
            dict.fromkeys(
                one.id
                for one in others
                if (not one.explained_by and one.id not in answer.beside)
                or (one.explained_by and one.id in answer.never_explained)
            )
        ),
    )


def _verdict(answer: Answer, diagnosis: Diagnosis, listed: Sequence[Finding]) -> str:
    noted = {one.id for one in diagnosis.findings if one.severity == "note"}
    if answer.severities == ("note",):
        if not listed:
            return "cause" if noted & set(answer.first) else "missed"
        return "symptom" if listed[0].id in _SHOWING else "other cause"
    if not listed:
        return "missed"
    first = listed[0]
    is_about = answer.candidate in (None, first.candidate)
    is_sound = set(answer.sound) <= set(diagnosis.verdict.sound)
    if first.id in answer.first and first.severity in answer.severities and is_about and is_sound:
        return "cause"
    return "symptom" if first.id in _SHOWING and first.id not in answer.first else "other cause"


def _above_a_note(diagnosis: Diagnosis) -> list[Finding]:
    return [one for one in diagnosis.findings if one.severity != "note"]


def _wrong_place(answer: Answer, found: Finding) -> str:
    """Return what of the place is wrong or not named; empty: nothing."""
    wrong = []
    tensors = set(found.tensors)
    if answer.tensor is not None and tensors != {answer.tensor}:
        wrong.append(f"tensor {'+'.join(sorted(tensors)) or 'not named'}")
    if answer.layers is not None and not _names_layers(answer, found):
        wrong.append(f"{len(found.layers)} layers for {len(answer.layers)}")
    where = found.where
    if answer.where is not None and not (where and _is_there(answer.where, where)):
        wrong.append(f"where {where or 'not named'}")
    return ", ".join(wrong)


def _names_layers(answer: Answer, found: Finding) -> bool:
    """Whether the layers named are those planted: half of them at least, and no others."""
    assert answer.layers is not None
    if not found.layers:  # all
        return found.confidence == "certain" and answer.layers == set(range(max(answer.layers) + 1))
    named = set(found.layers)
    return named <= answer.layers and 2 * len(named) >= len(answer.layers)


def _is_there(wanted: Where, found: Where) -> bool:
    if {wanted.kind, found.kind} == {"phase", "output-length"}:  # decode is every generated token
        phase, steps = (wanted, found) if wanted.kind == "phase" else (found, wanted)
        return phase.names == ("decode",) and steps.first <= 1
    if wanted.kind != found.kind:
        return False
    if wanted.names:
        return set(wanted.names) == set(found.names)
    return _is_near(wanted.first, found.first) and _is_near(wanted.end, found.end)


def _is_near(wanted: int | None, found: int | None) -> bool:
    if wanted is None or found is None:
        return wanted is found
    return abs(math.log2(wanted + 16) - math.log2(found + 16)) <= _OCTAVES_OFF
