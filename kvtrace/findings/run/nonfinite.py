"""NaN or inf in the captured K or V: whatever the scales are, this is not their fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import RunExample, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case

_EVIDENCE: Final = """
SELECT source, tensor, layer, kv_head, workload,
  sum(num_nonfinite)::BIGINT AS num_nonfinite,
  sum(num_values)::BIGINT AS num_values
FROM cells
WHERE candidate = $candidate AND num_nonfinite > 0
GROUP BY source, tensor, layer, kv_head, workload
ORDER BY num_nonfinite DESC, source, layer, kv_head, tensor, workload
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield an error where any captured value is no number."""
    valid = [subject for subject in case.subjects if subject.is_valid]
    if not valid:
        return
    sql = bound(_EVIDENCE, candidate=valid[0].name)
    rows = case.rows(sql)
    if rows:
        first = rows[0]
        yield Finding(
            id="nonfinite-values",
            severity="error",
            candidate=None,
            message=f"{sum(row['num_nonfinite'] for row in rows):,} captured values are NaN or inf, first in "
            f"layer {first['layer']} head {first['kv_head']} {first['tensor'].upper()}: they were so before "
            "quantization",
            action="Look at the model and its kernels in that layer; no scale changes this.",
            evidence=tuple(rows[:10]),
            sql=sql,
            layers=tuple(sorted({row["layer"] for row in rows})),
        )


RULE: Final = RunRule(
    id="nonfinite-values",
    headline="Values are NaN or infinite before any quantization",
    about="values",
    role="cause",
    tier=Tier.fault,
    mended_by="elsewhere",
    check=check,
    invalid=(RunExample(sums={(0, 0, "k"): {"num_nonfinite": 3}}),),
    valid=(RunExample(),),
)
