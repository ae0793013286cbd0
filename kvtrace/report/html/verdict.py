"""The verdict box: what is the case, what to do, what was found, and what becomes of each candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import count
from kvtrace.plain_text import plain
from kvtrace.report.statements import candidate_answer, decisive_finding, hypothetical_statement

if TYPE_CHECKING:
    from kvtrace.findings.finding import Finding
    from kvtrace.report.sections import CandidateSummary, Report

_NAME: Final = 200
_SENTENCES: Final = 4_000
_VERDICTS: Final = {
    "fault": ("bad", "✕"),
    "suspect": ("edge", "△"),
    "cannot tell": ("unknown", "?"),
    "sound": ("good", "✓"),
}
_SEVERITIES: Final = {"error": ("bad", "✕"), "warning": ("edge", "△"), "note": ("unknown", "○")}


def verdict_parts(report: Report) -> dict[str, Any]:
    """Return the template's `verdict`, `findings`, `notes` and `answers`; every text is plain."""
    verdict = report.verdict
    level, sign = _VERDICTS[verdict.status]
    first = decisive_finding(report)
    return {
        "verdict": {
            "level": level,
            "sign": sign,
            "state": verdict.status,
            "headline": plain(verdict.headline, _SENTENCES),
            "action": _action(first) if first else "",
            "hypothetical": hypothetical_statement(report, first) if first else "",
            "sound": ", ".join(plain(name, _NAME) for name in verdict.sound),
        },
        "findings": [_finding(one) for one in report.findings if one.severity != "note"],
        "notes": [_finding(one) for one in report.findings if one.severity == "note"],
        "answers": [_answer(report, one) for one in sorted(report.candidates, key=_is_bf16)],
    }


def _finding(one: Finding) -> dict[str, str]:
    level, sign = _SEVERITIES[one.severity]
    about = [f"under {plain(one.candidate, _NAME)}"] if one.candidate else []
    if one.confidence != "certain":
        about.append(f"confidence {one.confidence}")
    if one.num_requests is not None:
        about.append(f"from {count(one.num_requests, 'request')}")
    if one.explained_by:
        about.append(f"explained by {', '.join(one.explained_by)}")
    return {
        "level": level,
        "sign": sign,
        "severity": one.severity,
        "id": one.id,
        "about": ", ".join(about),
        "message": plain(one.message, _SENTENCES),
        "action": _action(one),
        "sql": "\n".join(plain(line, _SENTENCES) for line in one.sql.splitlines()),
    }


def _action(one: Finding) -> str:
    action = one.action if one.command is None else f"{one.action.rstrip('.')}: {one.command}"
    return plain(action, _SENTENCES)


def _is_bf16(candidate: CandidateSummary) -> bool:
    return candidate.kind == "bf16"


def _answer(report: Report, candidate: CandidateSummary) -> dict[str, str]:
    level, sign, state = _state(report, candidate)
    return {
        "level": level,
        "sign": sign,
        "state": state,
        "candidate": plain(candidate.candidate, _NAME),
        "text": candidate_answer(report, candidate),
    }


def _state(report: Report, candidate: CandidateSummary) -> tuple[str, str, str]:
    """Return level, sign and word: by what was found, so that the box never contradicts the verdict."""
    if candidate.status == "invalid":
        return "invalid", "⊘", "invalid"
    if candidate.kind == "bf16":
        return "unknown", "–", "not quantized"
    found = {one.severity for one in report.findings if one.candidate == candidate.candidate}
    if "error" in found:
        return "bad", "✕", "fault"
    if "warning" in found:
        return "edge", "△", "suspect"
    if any(total.num_heads_clipped for total in candidate.tensors):
        return "unknown", "○", "clips little"
    return "good", "✓", "clips nothing"
