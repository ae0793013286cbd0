"""Scales so wide that small values flush to 0 or meet subnormal steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times
from kvtrace.findings.finding import Finding, tensors_in
from kvtrace.findings.remedies import recalibrate_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.example import FLUSHES, RunExample, RunRule
from kvtrace.findings.run.underflow import evidence_sql, losing_by, severity_of
from kvtrace.findings.wording import some_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case


def check(case: Case) -> Iterator[Finding]:
    """Yield a warning per judged candidate whose scales are too wide for some heads."""
    for subject in case.subjects:
        losing = losing_by(case, subject, "scale")
        if not losing:
            continue
        worst = losing[0]
        sql = evidence_sql(subject)
        yield Finding(
            id="too-wide",
            severity=severity_of(losing),
            candidate=subject.name,
            message=(
                f"the scales of {len(losing)} heads ({some_heads([one.head for one in losing])}) are so wide "
                f"that small values are lost: most in layer {worst.head[0]} head {worst.head[1]} "
                f"{worst.head[2].upper()}, covering {times(worst.headroom)} its largest value; it flushes "
                f"{percent(worst.row['flushed_frac'])} of its values to 0"
            ),
            action="Look for a unit or clamp error in the export (256 × is forgiven). Then calibrate "
            "on this traffic",
            command=recalibrate_command(case, subject),
            evidence=tuple(case.rows(sql, 10)),
            sql=sql,
            heads=tuple(one.head for one in losing),
            tensors=tensors_in(one.head for one in losing),
            layers=tuple(sorted({one.head[0] for one in losing})),
            impact=worst.row["flushed_frac"],
        )


RULE: Final = RunRule(
    id="too-wide",
    headline="The scales of {heads} are too wide",
    about="format",
    role="symptom",
    loss="flushes",
    tier=Tier.head,
    mended_by="recalibrate",
    check=check,
    invalid=(RunExample(sums={(0, 0, "k"): FLUSHES | {"max_abs": 1.0}, (0, 1, "k"): {"max_abs": 2.0}}),),
    valid=(
        RunExample(sums={(0, 0, "k"): {"max_abs": 1.0}, (0, 1, "k"): {"max_abs": 2.0}}),
        # The scale fits the largest value.
        RunExample(sums={(0, 0, "k"): FLUSHES}),
    ),
)
