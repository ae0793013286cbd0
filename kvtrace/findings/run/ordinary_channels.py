"""A few channels hold nearly all of Σ x², and what the others lose shows in no share of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times
from kvtrace.findings.finding import Finding, tensors_in
from kvtrace.findings.remedies import recalibrate_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.example import HIDDEN_LOSS, ORDINARY, RunExample, RunRule
from kvtrace.findings.run.underflow import evidence_sql, losing_heads, severity_of
from kvtrace.findings.wording import skip_layers_flag, some_heads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.run.case import Case, Subject
    from kvtrace.findings.run.underflow import Blame, LosingHead


def check(case: Case) -> Iterator[Finding]:
    """Yield a warning per judged candidate and blame, scale or values, where all losses are hidden."""
    for subject in case.subjects:
        all_losing = losing_heads(case, subject)
        blames: tuple[Blame, ...] = ("scale", "values")
        for blame in blames:
            losing = [one for one in all_losing if one.blame == blame]
            if losing and all(one.is_hidden for one in losing):
                yield _finding(case, subject, losing)


def _finding(case: Case, subject: Subject, losing: Sequence[LosingHead]) -> Finding:
    heads = [one.head for one in losing]
    worst = max(losing, key=lambda one: one.row["ordinary_error"])
    is_scale = worst.blame == "scale"
    layers = tuple(sorted({layer for layer, _, _ in heads}))
    layer, head, tensor = worst.head
    why = (
        f"Its scale covers {times(worst.headroom)} its largest value"
        if is_scale
        else "Its scale fits the outliers, and a narrower one clips them"
    )
    sql = evidence_sql(subject)
    return Finding(
        id="ordinary-channels",
        severity=severity_of(losing),
        candidate=subject.name,
        message=(
            f"outlier channels hide what the others lose in {len(heads)} heads ({some_heads(heads)}). "
            f"In layer {layer} head {head} {tensor.upper()} the outliers hold "
            f"{percent(worst.row['outlier_signal_frac'])} of Σ x². The other {worst.row['channel_count']} "
            f"channels are at {_db(worst.row['ordinary_error'])} dB where rounding alone leaves "
            f"{_db(subject.floor)}; all channels together at {_db(worst.row['other_error'])}. {why}"
        ),
        action="Calibrate on this traffic: narrower scales leave the other channels more"
        if is_scale
        else f"Leave these layers in BF16: {skip_layers_flag(layers)}",
        command=recalibrate_command(case, subject) if is_scale else None,
        remedy="recalibrate" if is_scale else "leave layers",
        evidence=tuple(case.rows(sql, 10)),
        sql=sql,
        heads=tuple(heads),
        tensors=tensors_in(heads),
        layers=layers,
        impact=worst.row["ordinary_error"],
    )


def _db(error: float) -> str:
    return f"{-10 * math.log10(error):.1f}"


RULE: Final = RunRule(
    id="ordinary-channels",
    headline="Outlier channels hide what the others lose in {heads}",
    about="format",
    role="symptom",
    loss="flushes",
    tier=Tier.head,
    check=check,
    invalid=(
        RunExample(ordinary={(0, 0, "k"): HIDDEN_LOSS}),
        RunExample(
            sums={(0, 0, "k"): {"max_abs": 1.0}, (0, 1, "k"): {"max_abs": 2.0}},
            ordinary={(0, 0, "k"): HIDDEN_LOSS},
        ),
    ),
    valid=(
        RunExample(ordinary={(0, 0, "k"): ORDINARY}),
        # It is the outliers that lose more than the floor, and nothing is flushed.
        RunExample(sums={(0, 0, "k"): {"sum_sq_error": 1.6e3}}, ordinary={(0, 0, "k"): ORDINARY}),
        # The numbers over all channels show it: they lose small values too.
        RunExample(
            sums={(0, 0, "k"): {"sum_sq_error": 3e3, "num_flushed": 100}}, ordinary={(0, 0, "k"): HIDDEN_LOSS}
        ),
    ),
)
