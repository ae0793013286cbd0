"""All scales too small by one factor: a unit, a format's maximum or a power of two went wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.figures import times
from kvtrace.findings.artifact.rules import RULES as AUDITED
from kvtrace.findings.finding import TENSORS, Finding
from kvtrace.findings.remedies import recalibrate_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.drift import located_clipping
from kvtrace.findings.run.example import CLIPS, HEADS, Clipped, RunExample, RunRule, Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.run.case import Case, Row, Subject

_LEAST: Final = 1.8
"""Below, a narrow calibration is as likely as a wrong factor."""
_SPREAD: Final = math.log(1.5)
"""Between the 10th and the 90th percentile of layers: what two calibrations on equal traffic differ by."""
_CAUSES: Final = {rule.id for rule in AUDITED if rule.role == "cause" and "clips" in rule.makes}
_EVIDENCE: Final = """
SELECT tensor, layer, max(max_abs) AS max_abs, max(covered_amax) AS covered_amax,
  max(max_abs / covered_amax) AS observed_over_covered
FROM value_sums(chosen_cells)
  JOIN covered_heads USING (candidate, tensor, layer, kv_head)
WHERE candidate = $candidate AND scale IS NOT NULL
GROUP BY tensor, layer
ORDER BY tensor, layer
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield an error per judged candidate whose K and V ranges all end at one share of what came."""
    for subject in case.subjects:
        heads = case.whole_heads(subject.name) if subject.is_valid else []
        factor = _factor(heads)
        if factor is None or _has_another_cause(case, subject):
            continue
        sql = bound(_EVIDENCE, candidate=subject.name)
        yield Finding(
            id="constant-factor",
            severity="error",
            candidate=subject.name,
            message=f"all scales are too small by the same factor, {times(factor)}: K and V, in every layer",
            action=f"Look for a factor of {factor:.2g} in the export. Without one, calibrate on this traffic",
            command=recalibrate_command(case, subject),
            evidence=tuple(case.rows(sql, 10)),
            sql=sql,
            layers=tuple(sorted({row["layer"] for row in heads})),
            tensors=TENSORS,
            impact=factor,
        )


def _factor(heads: Sequence[Row]) -> float | None:
    """Return observed over covered amax, if it is one number for the K and the V of all layers."""
    widest: dict[tuple[str, int], float] = {}
    for row in heads:
        if row["max_abs"] and row["covered_amax"]:
            place = row["tensor"], row["layer"]
            widest[place] = max(widest.get(place, 0.0), row["max_abs"] / row["covered_amax"])
    of = {tensor: np.log([one for (t, _), one in widest.items() if t == tensor]) for tensor in TENSORS}
    if not all(len(found) for found in of.values()):
        return None
    every = np.concatenate(list(of.values()))
    low, high = np.quantile(every, (0.1, 0.9))
    apart = abs(float(np.median(of["k"]) - np.median(of["v"])))
    if high - low > _SPREAD or apart > _SPREAD or np.median(every) < math.log(_LEAST):
        return None
    return float(np.exp(np.median(every)))


def _has_another_cause(case: Case, subject: Subject) -> bool:
    """Return whether the values grew in a part of the traffic, or the artifact has a fault that clips."""
    if any(located.drifts for located in located_clipping(case, subject).values()):
        return True
    return any(
        row["severity"] != "note" and row["id"] in _CAUSES for row in case.stored_findings(subject.name)
    )


_ALL: Final = dict.fromkeys(HEADS, CLIPS)

RULE: Final = RunRule(
    id="constant-factor",
    headline="All scales are off by the same factor",
    role="cause",
    tier=Tier.fault,
    explains=("symptom",),
    makes=("clips",),
    mended_by="recalibrate",
    check=check,
    invalid=(RunExample(sums=_ALL, clipped={head: Clipped() for head in HEADS}),),
    valid=(
        # K alone.
        RunExample(
            sums={head: CLIPS for head in HEADS if head[2] == "k"},
            clipped={head: Clipped() for head in HEADS if head[2] == "k"},
        ),
        # In one workload alone.
        RunExample(
            traffic=(Traffic("code", 4), Traffic("chat")),
            sums=_ALL,
            clipped={head: Clipped(workload="code") for head in HEADS},
        ),
        RunExample(),
    ),
)
