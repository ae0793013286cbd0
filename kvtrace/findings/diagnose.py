"""All rules over one run, what explains what, and one ranked verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import ConfigDict

from kvtrace.findings.finding import SEVERITIES, Finding, tensors_in
from kvtrace.findings.rule import Tier, findings_of
from kvtrace.findings.rules import DIAGNOSED
from kvtrace.findings.run.case import Case
from kvtrace.findings.wording import tensors_of
from kvtrace.plain_text import plain
from kvtrace.scales.resolve import layer_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.findings.run.case import Row, Subject
    from kvtrace.runs.open import Run

Status = Literal["fault", "suspect", "cannot tell", "sound"]

_RULES: Final = {rule.id: rule for rule in DIAGNOSED}


@dataclass(frozen=True, slots=True)
class ScalesVerdict:
    """The answer in one screen."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    status: Status
    """fault: an error was found; suspect: a warning; cannot tell: too few requests; sound: neither."""
    headline: str
    """The first finding in a sentence, or that nothing was found."""
    finding: int | None
    """Place in `findings` of the one that it rests on; None: not even what was excluded is among them."""
    subject: str | None
    """The scales that the headline is about."""
    judged: tuple[str, ...]
    """Every set of scales that was judged, in the order asked for."""
    sound: tuple[str, ...]
    """Those of them with no finding above note."""


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """What one head loses under the scales that the headline is about; shares of Σ x²."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    layer: int
    kv_head: int
    tensor: Literal["k", "v"]
    clip_error: float
    """By clipping."""
    other_error: float
    """By rounding and flushing."""
    max_abs: float
    """Largest finite magnitude."""
    covered_amax: float
    """Largest magnitude in range: MAX × scale."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict and all that it rests on, ranked."""

    verdict: ScalesVerdict
    findings: tuple[Finding, ...]


def diagnose(run: Run) -> Diagnosis:
    """Return the verdict on a run.

    Raises IntegrityError: a file of it is damaged. SchemaVersionError: it holds a finding of a newer kvtrace.
    """
    return diagnose_case(Case(run))


def diagnose_case(case: Case) -> Diagnosis:
    """Return the same of a run under diagnosis, whose answers to the rules can be asked again."""
    for one in findings_of(DIAGNOSED, case):  # one at a time: the last rule asks what the others found
        case.found.append(replace(one, remedy=one.remedy or _RULES[one.id].mended_by))
    in_effect = {subject.name for subject in case.subjects if subject.in_effect}
    ranked = sorted(_with_explanations(case), key=lambda one: _rank(one, in_effect))
    verdict = _verdict(case.subjects, ranked, ranked)
    return Diagnosis(verdict, tuple(ranked))


def findings_about(findings: Sequence[Finding], subject: Subject | None) -> list[Finding]:
    """Return those of one set of scales, of the trace, and, where these scales ran, of what ran."""
    name = subject.name if subject else None
    ran = subject is not None and subject.in_effect and not subject.written_otherwise
    return [one for one in findings if one.candidate in (None, name) or (ran and one.is_about_what_ran)]


def verdict_about(case: Case, diagnosis: Diagnosis, subject: Subject | None) -> ScalesVerdict:
    """Return the verdict on one set of scales: of the others only whether they are sound."""
    about = findings_about(diagnosis.findings, subject)
    return _verdict(case.subjects, diagnosis.findings, about, (subject.name,) if subject else ())


def losses_under(case: Case, candidate: str) -> tuple[HeadLoss, ...]:
    """Return what each head loses, by layer and head; nothing where the candidate is invalid."""
    return tuple(_loss(row) for row in case.whole_heads(candidate))


def _with_explanations(case: Case) -> list[Finding]:
    """Return the findings, each with its causes; a cause is as severe as what it causes."""
    causes_of = [[cause for cause in case.found if _explains(case, cause, one)] for one in case.found]
    return [
        one
        if _RULES[one.id].role == "circumstance" and _comes_true(case, one)
        else replace(
            _with_its_loss(
                one, [lost for lost, its in zip(case.found, causes_of, strict=True) if one in its]
            ),
            explained_by=tuple(dict.fromkeys(cause.id for cause in causes)),
        )
        for one, causes in zip(case.found, causes_of, strict=True)
    ]


def _comes_true(case: Case, circumstance: Finding) -> bool:
    """Return whether values clip where a circumstance made it likely: in its part, or in no part known."""
    clipping = [
        one
        for one in case.found
        if one.candidate == circumstance.candidate
        and _RULES[one.id].loss == "clips"
        and one.severity != "note"
    ]
    located = [one for one in clipping if _RULES[one.id].role == "drift"]
    rule = _RULES[circumstance.id]
    return any(rule.accounts_for(circumstance, one, case) for one in located or clipping)


def _explains(case: Case, cause: Finding, symptom: Finding) -> bool:
    """What ran is to blame for what was lost under it, and an artifact for what would be lost under it."""
    rule, lost = _RULES[cause.id], _RULES[symptom.id]
    in_effect = {subject.name for subject in case.subjects if subject.in_effect}
    is_about_it = symptom.candidate in (in_effect if cause.is_about_what_ran else {cause.candidate})
    return (
        is_about_it
        and symptom.severity != "note"
        and (cause.severity != "note" or rule.is_as_bad_as_its_loss(cause))
        and lost.role in rule.explains
        and lost.loss in rule.makes
        and rule.accounts_for(cause, symptom, case)
    )


def _with_its_loss(cause: Finding, losses: Sequence[Finding]) -> Finding:
    """Return a cause as bad as the worst that it explains; where that alone tells, in its place."""
    follows = _RULES[cause.id].is_as_bad_as_its_loss(cause)
    if not losses:
        return replace(cause, severity="note") if follows else cause
    worst = min((one.severity for one in losses), key=SEVERITIES.index)
    if not follows:
        return replace(cause, severity=min(cause.severity, worst, key=SEVERITIES.index))
    heads = {head for one in losses for head in one.heads}
    return replace(
        cause,
        severity=worst,
        layers=cause.layers or tuple(sorted({layer for layer, _, _ in heads})),
        tensors=cause.tensors or tensors_in(heads),
        message=f"{cause.message}. {_cost(losses)}",
        impact=max(one.impact for one in losses),
    )


def _cost(losses: Sequence[Finding]) -> str:
    """Return what a cause costs, in words."""
    told = []
    for one in losses:
        if _RULES[one.id].role == "symptom":
            what = "clip" if _RULES[one.id].loss == "clips" else "lose small values"
            where = f"{layer_ranges(one.layers)}"
            told.append(f"{len(one.heads)} {tensors_of(one.heads)} heads {what} in {where}")
    return "By it " + "; ".join(told) if told else "By it values leave the range"


def _rank(finding: Finding, in_effect: set[str]) -> tuple[object, ...]:
    rule = _RULES[finding.id]
    tier = Tier.explained if finding.explained_by else rule.tier_of(finding)
    is_of_others = finding.candidate is not None and bool(in_effect) and finding.candidate not in in_effect
    is_hypothetical = is_of_others and not finding.is_about_what_ran
    return SEVERITIES.index(finding.severity), is_hypothetical, tier, -finding.impact, finding.candidate or ""


def _verdict(
    subjects: Sequence[Subject],
    ranked: Sequence[Finding],
    about: Sequence[Finding],
    of: tuple[str, ...] = (),
) -> ScalesVerdict:
    """Return the verdict that rests on some of the findings, in their order.

    of: the scales that these are about; empty: all that were judged.
    """
    judged = tuple(subject.name for subject in subjects)
    blamed = {one.candidate for one in ranked if one.severity != "note"}
    is_blamed = bool(about) and about[0].severity != "note"
    place = ranked.index(about[0]) if is_blamed else _first_of(ranked, Tier.cannot_tell)
    if place is None:
        status: Status = "sound"
        headline = _nothing_found(of or judged, about)
        place = _first_of(ranked, Tier.excluded)
    elif is_blamed:
        status = "fault" if about[0].severity == "error" else "suspect"
        headline = _sentence(about[0], judged)
    else:
        status, headline = "cannot tell", ranked[place].message
    return ScalesVerdict(
        status=status,
        headline=headline,
        finding=place,
        subject=about[0].candidate if is_blamed else None,
        judged=judged,
        sound=() if None in blamed else tuple(name for name in judged if name not in blamed),
    )


def _first_of(ranked: Sequence[Finding], tier: Tier) -> int | None:
    places = (place for place, one in enumerate(ranked) if _RULES[one.id].tier_of(one) is tier)
    return next(places, None)


def _nothing_found(judged: Sequence[str], ranked: Sequence[Finding]) -> str:
    under = plain(judged[0], 40) if len(judged) == 1 else f"any of {len(judged)} sets of scales"
    noted = dict.fromkeys(one.id for one in ranked if _RULES[one.id].role != "all-clear")
    return (
        "not the scales: no clipping, flushing or drift beyond the limits, and no fault of the scales, "
        f"was found under {under}" + (f"; noted: {', '.join(noted)}" if noted else "")
    )


def _loss(row: Row) -> HeadLoss:
    return HeadLoss(
        layer=row["layer"],
        kv_head=row["kv_head"],
        tensor=row["tensor"],
        clip_error=row["clip_error"] or 0.0,
        other_error=row["other_error"] or 0.0,
        max_abs=row["max_abs"] or 0.0,
        covered_amax=row["covered_amax"],
    )


def _sentence(finding: Finding, judged: Sequence[str]) -> str:
    about = f"{plain(finding.candidate, 40)}: " if finding.candidate and len(judged) > 1 else ""
    return about + finding.message
