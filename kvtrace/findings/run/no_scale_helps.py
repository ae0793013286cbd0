"""Heads whose own values span more than FP8 holds: any scale clips or flushes, only BF16 helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent
from kvtrace.findings.finding import Finding, tensors_in
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.example import FLUSHES, RunExample, RunRule
from kvtrace.findings.run.underflow import evidence_sql, losing_by, severity_of
from kvtrace.findings.wording import skip_layers_flag, some_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case


def check(case: Case) -> Iterator[Finding]:
    """Yield a warning per judged candidate with such heads."""
    for subject in case.subjects:
        losing = losing_by(case, subject, "values")
        if not losing:
            continue
        worst = losing[0]
        sql = evidence_sql(subject)
        layers = {one.head[0] for one in losing}
        yield Finding(
            id="no-scale-helps",
            severity=severity_of(losing),
            candidate=subject.name,
            message=(
                f"{len(losing)} heads ({some_heads([one.head for one in losing])}) hold values further apart "
                "than FP8 reaches: their scale fits the largest, and most is lost in layer "
                f"{worst.head[0]} head {worst.head[1]} {worst.head[2].upper()} with "
                f"{percent(worst.row['flushed_frac'])} of its values flushed to 0. No scale will help: a "
                "narrower one clips"
            ),
            action=f"Leave these layers in BF16: {skip_layers_flag(layers)}",
            evidence=tuple(case.rows(sql, 10)),
            sql=sql,
            heads=tuple(one.head for one in losing),
            tensors=tensors_in(one.head for one in losing),
            layers=tuple(sorted(layers)),
            impact=worst.row["flushed_frac"],
        )


RULE: Final = RunRule(
    id="no-scale-helps",
    headline="No single scale fits the values of {heads}",
    about="format",
    role="symptom",
    loss="flushes",
    tier=Tier.head,
    mended_by="leave layers",
    check=check,
    invalid=(RunExample(sums={(0, 0, "k"): FLUSHES}),),
    valid=(
        RunExample(),
        RunExample(sums={(0, 0, "k"): FLUSHES | {"max_abs": 1.0}}),
    ),
)
