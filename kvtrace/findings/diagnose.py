"""All rules over one run, what explains what, and one ranked verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import ConfigDict

from kvtrace.findings.finding import SEVERITIES, Finding
from kvtrace.findings.run import (
    artifact_faults,
    clipping,
    coverage,
    drift,
    no_scale_helps,
    nonfinite,
    outlier_head,
    rounding_floor,
    scales_not_loaded,
    too_wide,
)
from kvtrace.findings.run.case import Case
from kvtrace.findings.run.not_the_scales import finding_of
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvtrace.findings.finding import Severity
    from kvtrace.findings.run.case import Row, Subject
    from kvtrace.findings.run.strata_split import Located
    from kvtrace.runs.open import Run

RULES: Final[tuple[Callable[[Case], Iterator[Finding]], ...]] = (
    scales_not_loaded.check,
    artifact_faults.check,
    nonfinite.check,
    drift.check,
    outlier_head.check,
    too_wide.check,
    no_scale_helps.check,
    clipping.check,
    coverage.check,
    rounding_floor.check,
)

Status = Literal["fault", "suspect", "cannot tell", "sound"]

_LOCATED: Final = 1
_SYMPTOM: Final = 3
_TIERS: Final = {
    "nonfinite-values": 0,
    "drift-workload": _LOCATED,
    "drift-position": _LOCATED,
    "drift-output-length": _LOCATED,
    "pre-rope-keys": _LOCATED,
    "ema-observer": _LOCATED,
    "outlier-head": 2,
    "no-scale-helps": 2,
    "too-wide": 2,
    "k-clips": _SYMPTOM,
    "v-clips": _SYMPTOM,
    "short-calibration": 4,
    "outside-envelope": 4,
    "merged-kv": _LOCATED,
    "not-the-scales": -1,
    "coverage": 5,
    "rounding-floor": 7,
    "bf16-rounding": 8,
    "weights-equal": 9,
}
"""What a reader should hear first among equals: what the artifact is, then where values left the range, then
what the scale does to them. Other audit findings are of tier 0."""
_CANNOT_TELL: Final = -2
_EXPLAINED: Final = 10
_SYMPTOMS: Final = ("k-clips", "v-clips", "outlier-head", "no-scale-helps", "too-wide")
_DRIFTS: Final = ("drift-workload", "drift-position", "drift-output-length")
_ALL_IS_WELL: Final = ("not-the-scales", "weights-equal")
"""Notes that something is as it should be: a verdict does not name them beside itself."""
_CIRCUMSTANCES: Final = ("short-calibration", "outside-envelope")
"""They make clipping likely, and do not name its place; what is measured comes first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in one screen."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    status: Status
    """fault: an error was found; suspect: a warning; cannot tell: too few requests; sound: neither."""
    headline: str
    """The first finding in a sentence, or that nothing was found."""
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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict and all that it rests on, ranked."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    losses: tuple[HeadLoss, ...]
    """Of `losses_under`, by layer and head; empty where nothing valid was judged."""
    losses_under: str | None
    """The verdict's subject, or the first valid candidate."""


def diagnose(run: Run) -> Diagnosis:
    """Return the verdict on a run. Raises IntegrityError: a file of it is damaged."""
    case = Case(run)
    found = [finding for rule in RULES for finding in rule(case)]
    found = _with_explanations(case, found)
    excluded = [note for subject in case.subjects if (note := finding_of(case, subject, found))]
    in_effect = {subject.name for subject in case.subjects if subject.in_effect}
    ranked = tuple(sorted([*found, *excluded], key=lambda one: _rank(one, in_effect)))
    verdict = _verdict(case.subjects, ranked)
    valid = [subject.name for subject in case.subjects if subject.is_valid]
    under = verdict.subject if verdict.subject in valid else next(iter(valid), None)
    losses = tuple(_loss(row) for row in case.whole_heads(under)) if under is not None else ()
    return Diagnosis(verdict, ranked, losses, under)


def _with_explanations(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, each symptom with its causes; a cause is as severe as what it causes."""
    located = {
        subject.name: drift.located_clipping(case, subject) for subject in case.subjects if subject.is_valid
    }
    explained: list[tuple[Finding, tuple[str, ...]]] = []
    severities: dict[int, Severity] = {}
    for one in findings:
        causes = [
            cause
            for cause in findings
            if one.id in (*_SYMPTOMS, *_DRIFTS) and one.severity != "note" and _explains(cause, one, located)
        ]
        for cause in causes:
            worst = min(severities.get(id(cause), cause.severity), one.severity, key=SEVERITIES.index)
            severities[id(cause)] = worst
        explained.append((one, tuple(dict.fromkeys(cause.id for cause in causes))))
    return [
        replace(one, explained_by=causes, severity=severities.get(id(one), one.severity))
        for one, causes in explained
    ]


def _explains(cause: Finding, symptom: Finding, located: dict[str, dict[str, Located]]) -> bool:
    if cause.candidate != symptom.candidate or cause.severity == "note":
        return False
    if cause.id in (*_SYMPTOMS, *_CIRCUMSTANCES, "nonfinite-values"):
        return False
    if cause.id in _DRIFTS:
        if symptom.id not in ("k-clips", "v-clips") or not set(cause.heads) & set(symptom.heads):
            return False
        return set(symptom.heads) <= located[str(symptom.candidate)][symptom.id[0]].explained
    if symptom.id in _DRIFTS and _TIERS.get(cause.id, 0) > 0:
        return False
    tensors = {tensor for _, _, tensor in symptom.heads}
    only = "k" if cause.id == "pre-rope-keys" else cause.evidence[0].get("tensor") if cause.evidence else None
    if only is not None and only not in tensors:
        return False
    return not cause.layers or bool(set(cause.layers) & set(symptom.layers))


def _rank(finding: Finding, in_effect: set[str]) -> tuple[object, ...]:
    tier = _EXPLAINED if finding.explained_by else _TIERS.get(finding.id, 0)
    if coverage.is_too_little(finding):
        tier = _CANNOT_TELL
    hypothetical = finding.candidate is not None and bool(in_effect) and finding.candidate not in in_effect
    if finding.id == "scales-not-loaded":
        hypothetical = False
    return SEVERITIES.index(finding.severity), hypothetical, tier, -finding.impact, finding.candidate or ""


def _verdict(subjects: Sequence[Subject], ranked: Sequence[Finding]) -> Verdict:
    judged = tuple(subject.name for subject in subjects)
    blamed = {one.candidate for one in ranked if one.severity != "note"}
    sound = () if None in blamed else tuple(name for name in judged if name not in blamed)
    first = ranked[0] if ranked else None
    too_little = next((one for one in ranked if coverage.is_too_little(one)), None)
    if first is not None and first.severity != "note":
        status: Status = "fault" if first.severity == "error" else "suspect"
        headline = _sentence(first, judged)
    elif too_little is not None:
        status, headline, first = "cannot tell", too_little.message, too_little
    else:
        status = "sound"
        under = plain(judged[0], 40) if len(judged) == 1 else f"any of {len(judged)} sets of scales"
        noted = dict.fromkeys(one.id for one in ranked if one.id not in _ALL_IS_WELL)
        headline = (
            "NOT THE SCALES: no clipping, flushing or drift beyond the limits, and no fault of the scales, "
            f"was found under {under}" + (f"; noted: {', '.join(noted)}" if noted else "")
        )
    return Verdict(
        status=status,
        headline=headline,
        subject=first.candidate if first is not None and first.severity != "note" else None,
        judged=judged,
        sound=sound,
    )


def _loss(row: Row) -> HeadLoss:
    return HeadLoss(
        layer=row["layer"],
        kv_head=row["kv_head"],
        tensor=row["tensor"],
        clip_error=row["clip_error"] or 0.0,
        other_error=row["other_error"] or 0.0,
    )


def _sentence(finding: Finding, judged: Sequence[str]) -> str:
    about = f"{plain(finding.candidate, 40)}: " if finding.candidate and len(judged) > 1 else ""
    return about + finding.message
