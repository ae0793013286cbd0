"""What the audit of each artifact found while it was replayed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Final

from kvtrace.findings.finding import Finding
from kvtrace.findings.run.case import bound
from kvtrace.findings.wording import is_refused_per_head, recalibrate_command, scales_command
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case, Row, Subject

_FINDINGS: Final = """
SELECT source, candidate, id, severity, message, action, layers, evidence
FROM findings
WHERE candidate = $candidate
ORDER BY source, ordinal
"""
_EVIDENCE: Final = """
SELECT source, id, severity, message, layers, evidence
FROM findings
WHERE candidate = $candidate AND id = $id
ORDER BY source, ordinal
"""
_MENDED_BY_CALIBRATION: Final = (
    "constant-scales",
    "ema-observer",
    "merged-kv",
    "missing-layers",
    "outside-envelope",
    "pre-rope-keys",
    "short-calibration",
    "stale-artifact",
    "unusable-values",
    "wrong-model",
)
_MEND_ARTIFACT: Final = "Mend or replace the artifact; nothing was scored under it."
_CHANGE_SETUP: Final = (
    "No artifact is at fault: replay with an engine, backend and format that can apply these scales; nothing "
    "was scored under them."
)
ASKED_OF_THE_RUN: Final = "scales-not-loaded"
"""The audit knows one artifact; the run knows all, and whether another one is what ran."""


def check(case: Case) -> Iterator[Finding]:
    """Yield the audit's findings on every artifact, one for each message however many traces show it."""
    for subject in case.subjects:
        seen = set()
        passed_on = _passed_on(case, subject)
        for row in passed_on:
            if (row["id"], row["message"]) in seen:
                continue
            seen.add((row["id"], row["message"]))
            yield Finding(
                id=row["id"],
                severity=row["severity"],
                confidence="certain",
                candidate=subject.name,
                message=row["message"],
                action=row["action"],
                evidence=(json.loads(row["evidence"]),),
                sql=bound(_EVIDENCE, candidate=subject.name, id=row["id"]),
                layers=tuple(row["layers"] or ()),
                command=_command(case, subject, row),
            )
        if subject.status == "invalid" and not any(row["severity"] == "error" for row in passed_on):
            is_artifact = subject.kind == "artifact"
            yield Finding(
                id="invalid-artifact",
                severity="error",
                confidence="certain",
                candidate=subject.name,
                message=f"cannot be used: {subject.reason or 'no reason recorded'}",
                action=_MEND_ARTIFACT if is_artifact else _CHANGE_SETUP,
                command=recalibrate_command(case, subject) if is_artifact else None,
                evidence=({"status": subject.status, "reason": subject.reason},),
                sql=bound(
                    "SELECT candidate, status, reason FROM candidates WHERE candidate = $candidate",
                    candidate=subject.name,
                ),
            )


def _passed_on(case: Case, subject: Subject) -> list[Row]:
    """Return what the audit found, less what the run itself knows better: what it loaded, and why not."""
    return [
        row
        for row in case.rows(bound(_FINDINGS, candidate=subject.name))
        if row["id"] != ASKED_OF_THE_RUN
        and not (is_refused_per_head(subject) and _is_of_the_backend_alone(row))
    ]


def _is_of_the_backend_alone(row: Row) -> bool:
    """Return whether a maximum over heads is what a backend would make, rather than what the engine used."""
    return bool(
        row["id"] == "per-head-collapsed" and not json.loads(row["evidence"]).get("num_heads_collapsed")
    )


def _command(case: Case, subject: Subject, row: Row) -> str | None:
    """Return what mends the fault, or shows it layer by layer."""
    against = json.loads(row["evidence"]).get("against")
    if against is not None:
        return scales_command(case, subject.artifact, f"--against {shlex.quote(plain(against, 1000))}")
    if row["id"] in _MENDED_BY_CALIBRATION:
        return recalibrate_command(case, subject)
    return scales_command(case, subject.artifact)
