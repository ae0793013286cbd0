"""How much of the traffic was captured: too little, and nothing found says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import RunExample, RunRule, Traffic
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case

MIN_REQUESTS: Final = 5
"""Below, an interval has no upper end (kvtrace.stats.fractions)."""
_MAX_LOST: Final = 0.2

_EVIDENCE: Final = """
SELECT source, workload, count(*) FILTER (sampled) AS num_sampled_requests,
  count(*) FILTER (num_rows > 0) AS num_captured_requests,
  sum(num_rows)::BIGINT AS num_rows, sum(num_dropped)::BIGINT AS num_dropped,
  count(*) FILTER (num_dropped > 0) AS num_incomplete_requests,
  max(prompt_tokens + output_tokens) FILTER (num_rows > 0) AS longest
FROM requests
GROUP BY source, workload
ORDER BY source, workload
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield a note where requests are too few to tell, in all or in a workload, or many rows were lost."""
    sql = bound(_EVIDENCE)
    rows = case.rows(sql)
    captured = sum(row["num_captured_requests"] for row in rows)
    kept, lost = sum(row["num_rows"] for row in rows), sum(row["num_dropped"] for row in rows)
    thin = [
        row for row in rows if row["num_sampled_requests"] and row["num_captured_requests"] < MIN_REQUESTS
    ]
    if captured < MIN_REQUESTS:
        message = (
            f"too few requests to tell: {captured} captured; below {MIN_REQUESTS} what is not seen may "
            "still be there, however many tokens they have"
        )
        action = "Capture more requests: raise the sampled fraction of requests rather than of positions."
    elif lost > _MAX_LOST * (kept + lost):
        message = (
            f"too little was kept to tell: {lost:,} of {kept + lost:,} sampled rows were lost, so what was "
            "captured is not the traffic"
        )
        action = (
            "Capture again with a larger byte budget or a wider position stride, so that nothing is lost."
        )
    elif thin:
        names = ", ".join(
            f"{plain(row['workload'], 30)} ({row['num_captured_requests']})" for row in thin[:5]
        )
        message = f"too few requests to tell what is not seen there: {names}; it takes {MIN_REQUESTS}"
        action = "Capture more requests of these workloads before trusting that they are fine."
    else:
        return
    yield Finding(
        id="coverage",
        severity="note",
        candidate=None,
        message=message,
        action=action,
        evidence=tuple(rows[:20]),
        sql=sql,
        impact=0.0 if thin and captured >= MIN_REQUESTS and lost <= _MAX_LOST * (kept + lost) else 1.0,
    )


def _tier_of(finding: Finding) -> Tier:
    """Too little of the whole trace leaves nothing to tell; of one workload, the others are told."""
    return Tier.cannot_tell if finding.impact else Tier.coverage


RULE: Final = RunRule(
    id="coverage",
    headline="Too few requests to tell",
    role="note",
    tier=_tier_of,
    mended_by="capture",
    check=check,
    invalid=(
        RunExample(traffic=(Traffic(requests=4),)),
        RunExample(traffic=(Traffic(num_dropped=1),)),
        # One workload alone: a verdict can be given all the same.
        RunExample(traffic=(Traffic(), Traffic("code", requests=2))),
    ),
    valid=(RunExample(),),
)
