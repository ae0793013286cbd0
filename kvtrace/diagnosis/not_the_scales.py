"""Not the scales: what was looked at and found sound, and what kvtrace cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.diagnosis.case import bound
from kvtrace.diagnosis.finding import Finding
from kvtrace.diagnosis.wording import percent, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.diagnosis.case import Case, Subject

_EVIDENCE: Final = """
SELECT tensor, sum(num_values)::BIGINT AS num_values,
  sum(num_clipped)::BIGINT AS num_clipped,
  sum(num_flushed)::BIGINT AS num_flushed,
  sqnr_db(sum(weight * sum_sq_signal), sum(weight * sum_sq_error)) AS sqnr_db
FROM cells JOIN sampling USING (source, sampling_id)
WHERE candidate = $candidate
GROUP BY tensor
ORDER BY tensor
"""
_INVISIBLE: Final = (
    "errors compounding through layers, misranking in attention, kernel accumulation, cache transfer, "
    "task accuracy itself"
)


def finding_of(case: Case, subject: Subject, findings: Sequence[Finding]) -> Finding | None:
    """Return a note that excludes the scales, or None where something above note was found on them."""
    own = [one for one in findings if one.candidate in (subject.name, None) and one.severity != "note"]
    heads = case.whole_heads(subject.name) if subject.is_valid else []
    if own or not heads:
        return None
    sql = bound(_EVIDENCE, candidate=subject.name)
    clip = max(row["clip_error"] or 0.0 for row in heads)
    headroom = min((row["covered_amax"] / row["max_abs"] for row in heads if row["max_abs"]), default=1.0)
    in_effect = (
        "they are what ran" if subject.in_effect else "they are not what was captured, so hypothetical"
    )
    return Finding(
        id="not-the-scales",
        severity="note",
        confidence="certain",
        candidate=subject.name,
        message=(
            f"nothing speaks against these scales ({in_effect}). Excluded: clipping (at most {percent(clip)} "
            f"of a head's energy; covered amax at least {times(headroom)} the largest value), flushing (at "
            f"most {percent(max(row['flushed_frac'] or 0 for row in heads))} of a head's values), drift by "
            f"workload, position and output length, faults of the artifact. Not visible here: {_INVISIBLE}"
        ),
        action="Look elsewhere: serve the same prompts with --kv-cache-dtype auto. If quality stays low, FP8 "
        "is not the cause; if it recovers, suspect the attention kernel or the cache transfer",
        evidence=tuple(case.rows(sql)),
        sql=sql,
    )
