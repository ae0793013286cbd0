"""A scale per tensor set by one head with outliers: the other heads lose their small values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent, times
from kvtrace.findings.finding import Finding, tensors_in
from kvtrace.findings.remedies import NEEDS_PER_HEAD, per_head_scales, takes_per_head
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.example import FLUSHES, RunExample, RunRule
from kvtrace.findings.run.underflow import error_of, evidence_sql, losing_by, severity_of
from kvtrace.findings.wording import skip_layers_flag, some_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case


def check(case: Case) -> Iterator[Finding]:
    """Yield a warning per judged candidate in which heads suffer from a wide neighbour."""
    for subject in case.subjects:
        losing = losing_by(case, subject, "other-head")
        if not losing:
            continue
        worst = losing[0]
        sql = evidence_sql(subject)
        wide = tuple(
            dict.fromkeys(
                (one.widest["layer"], one.widest["kv_head"], one.widest["tensor"]) for one in losing
            )
        )
        layers = tuple(sorted({one.head[0] for one in losing}))
        is_taken = takes_per_head(case, subject)
        lost = error_of(worst.row) / subject.floor if subject.floor else 0.0
        yield Finding(
            id=NEEDS_PER_HEAD,
            severity=severity_of(losing),
            candidate=subject.name,
            message=(
                f"one head sets the scale per tensor for its layer: {some_heads(wide)}. "
                f"In {count(len(losing), 'other head')} the range is up to {times(worst.headroom)} what is "
                f"needed; loses most: layer {worst.head[0]} head {worst.head[1]} {worst.head[2].upper()}, "
                f"{percent(worst.row['flushed_frac'])} of its values flushed. A scale per head would bring "
                f"its error down by {times(max(lost, 1.0))}, to the rounding floor"
            ),
            action="Calibrate per head (needs FlashAttention 3 or later: others collapse it to the maximum)"
            if is_taken
            else "This engine takes one scale for all heads of a layer. Leave these layers in BF16: "
            f"{skip_layers_flag(layers)}",
            command=per_head_scales(case, subject).calibrate_command if is_taken else None,
            remedy="recalibrate" if is_taken else "leave layers",
            evidence=tuple(case.rows(sql, 10)),
            sql=sql,
            heads=tuple(one.head for one in losing),
            tensors=tensors_in(one.head for one in losing),
            layers=layers,
            impact=worst.row["flushed_frac"],
        )


RULE: Final = RunRule(
    id=NEEDS_PER_HEAD,
    headline="One head sets the scale for all heads of its layer",
    about="format",
    role="symptom",
    loss="flushes",
    tier=Tier.head,
    check=check,
    invalid=(RunExample(sums={(0, 0, "k"): FLUSHES | {"max_abs": 1.0}}),),
    valid=(
        RunExample(sums={(0, 0, "k"): {"max_abs": 1.0}}),
        RunExample(sums={(0, 0, "k"): FLUSHES}),
    ),
)
