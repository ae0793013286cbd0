"""What the audit of each artifact found while it was replayed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.errors import SchemaVersionError
from kvtrace.findings.artifact.rules import RULES
from kvtrace.findings.finding import IN_EFFECT, Finding
from kvtrace.findings.remedies import recalibrate_command, scales_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import RunExample, RunRule
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.example import ArtifactRule
    from kvtrace.findings.rule import AnyRule
    from kvtrace.findings.run.case import Case, Row, Subject

_EVIDENCE: Final = """
SELECT source, id, severity, message, layers, evidence
FROM findings
WHERE candidate = $candidate AND id = $id
ORDER BY source, ordinal
"""
_MEND_ARTIFACT: Final = "Mend or replace the artifact; nothing was scored under it."
_CHANGE_SETUP: Final = (
    "No artifact is at fault: replay with an engine, backend and format that can apply these scales; nothing "
    "was scored under them."
)
_AUDIT: Final = {rule.id: rule for rule in RULES}


def passed_on(rule: AnyRule) -> AnyRule:
    """Return an artifact's rule as a run has it: what the replay's audit found, read from the run."""
    return replace(rule, check=check)


def check(case: Case) -> Iterator[Finding]:
    """Yield the audit's findings on every artifact, one for each message however many traces show it."""
    for subject in case.subjects:
        seen = set()
        rows = _stored(case, subject)
        for row in rows:
            if (row["id"], row["message"]) not in seen:
                seen.add((row["id"], row["message"]))
                yield _repeated(case, subject, row)
        if subject.status == "invalid" and not any(row["severity"] == "error" for row in rows):
            is_artifact = subject.kind == "artifact"
            yield Finding(
                id="invalid-artifact",
                severity="error",
                candidate=subject.name,
                message=f"cannot be used: {subject.reason or 'no reason recorded'}",
                action=_MEND_ARTIFACT if is_artifact else _CHANGE_SETUP,
                command=recalibrate_command(case, subject) if is_artifact else None,
                remedy=RULE.mended_by if is_artifact else "change setup",
                evidence=({"status": subject.status, "reason": subject.reason},),
                sql=bound(
                    "SELECT candidate, status, reason FROM candidates WHERE candidate = $candidate",
                    candidate=subject.name,
                ),
            )


def _stored(case: Case, subject: Subject) -> list[Row]:
    """Return what the audit found, less what the run itself knows better: what it loaded, and why not."""
    return [
        row
        for row in case.stored_findings(subject.name)
        if _rule_of(case, row).in_run == "passed on"
        and not (subject.reason_id == "per-head-refused" and _is_of_the_backend_alone(row))
    ]


def _rule_of(case: Case, row: Row) -> ArtifactRule:
    if row["id"] not in _AUDIT:
        raise SchemaVersionError(
            f"{case.run.path}: holds a finding {plain(row['id'], 40)!r}, which this kvtrace does not know; "
            "install a newer kvtrace"
        )
    return _AUDIT[row["id"]]


def _is_of_the_backend_alone(row: Row) -> bool:
    """Return whether a maximum over heads is what a backend would make, rather than what the engine used."""
    return row["id"] == "per-head-collapsed" and not row["evidence"].get("num_heads_collapsed")


def _repeated(case: Case, subject: Subject, row: Row) -> Finding:
    """Return a finding of the audit with what mends the fault, or shows it layer by layer."""
    evidence = row["evidence"]
    remedy = _rule_of(case, row).mended_by
    against = evidence.get("against")
    if against is not None:
        options = (f"--against {shlex.quote(plain(against, 1000))}",)
        remedy, command = remedy and "look", scales_command(case, subject.artifact, *options)
    elif remedy == "recalibrate":
        command = recalibrate_command(case, subject)
    else:
        command = scales_command(case, subject.artifact)
    return Finding(
        id=row["id"],
        severity=row["severity"],
        candidate=subject.name,
        message=row["message"],
        action=row["action"],
        evidence=(evidence,),
        sql=bound(_EVIDENCE, candidate=subject.name, id=row["id"]),
        layers=tuple(row["layers"] or ()),
        tensors=tuple(evidence.get("tensors") or ()),
        is_about_what_ran=bool(evidence.get(IN_EFFECT)),
        command=command,
        remedy=remedy,
    )


RULE: Final = RunRule(
    id="invalid-artifact",
    headline="These scales cannot be used as asked",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="recalibrate",
    check=check,
    invalid=(RunExample(invalid_as="unusable-value"),),
    valid=(
        RunExample(),
        # The audit says what is wrong.
        RunExample(
            invalid_as="wrong-model",
            audit=({"id": "wrong-model", "severity": "error", "evidence": "{}"},),
        ),
    ),
)
