"""The recalibration triggers that fired: why the scales should be calibrated or approved anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.rules import RULES
from kvtrace.gate.constant import FACTS
from kvtrace.gate.envelope import outside_words
from kvtrace.gate.outcome import SegmentOutcome, Verdict
from kvtrace.gate.policy import Approved
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtrace.gate.envelope import Outside
    from kvtrace.query import RunConnection
    from kvtrace.runs.open import Run

_OF_THE_CALIBRATION: Final = """
SELECT source, message
FROM findings
WHERE candidate = $candidate AND severity <> 'note'
  AND list_contains($rules, id)
ORDER BY source, ordinal
"""
"""What the replay found when it held the artifact's calibration manifest against the trace."""
_RECALLING: Final = [rule.id for rule in RULES if rule.recalls_approval]

_BEYOND_CALIBRATION: Final = """
SELECT max(max_abs) > calibrated_amax AND max(max_abs) > covered_amax AS is_beyond,
  max(max_abs) / calibrated_amax AS drift, layer, kv_head, tensor,
  max({'amax': max_abs, 'workload': workload})['workload'] AS workload
FROM scaled_cells
WHERE candidate = $candidate AND calibrated_amax > 0
GROUP BY source, layer, kv_head, tensor, calibrated_amax, covered_amax
"""
"""A maximum grows with the sample, so heads count only where the scale does not cover the live one either."""


def fired_triggers(
    run: Run,
    connection: RunConnection,
    candidate: str,
    approved: Approved,
    outside: Iterable[Outside],
    segments: Sequence[SegmentOutcome],
) -> tuple[str, ...]:
    """Return why the scales should be calibrated or approved anew, a phrase each.

    connection: to the run, with the views and measures of queries/.
    """
    changed = [
        f"{what} is {plain(found or 'not recorded', 80)} in {plain(source.name)}, "
        f"approved was {plain(wanted, 80)}"
        for source in run.record.sources
        for what, wanted in approved.model_dump(exclude_none=True).items()
        if (found := FACTS[what](source)) != wanted
    ]
    known = {
        what: {
            plain(value, 80) for source in run.record.sources if (value := FACTS[what](source)) is not None
        }
        for what in Approved.model_fields
    }
    mixed = [
        f"the traces differ in {what}: {', '.join(sorted(values))}"
        for what, values in known.items()
        if len(values) > 1
    ]
    traffic = [f"traffic: {outside_words(one)}" for one in outside]
    breached = [
        f"limit breached: {one.name}: {limit.limit}, {limit.num_breached:,} of {limit.num_heads:,} heads"
        for one in segments
        for limit in one.limits
        if one.verdict is Verdict.breached and limit.verdict is Verdict.breached
    ]
    nonfinite = [
        f"NaN or inf: {one.name}: {one.num_nonfinite_vectors:,} vectors"
        for one in segments
        if one.num_nonfinite_vectors
    ]
    calibration = _calibration_triggers(connection, candidate)
    return (*changed, *mixed, *calibration, *traffic, *breached, *nonfinite)


def _calibration_triggers(connection: RunConnection, candidate: str) -> list[str]:
    """Return in what the traces have left the artifact's own calibration; nothing without a manifest."""
    asked = {"candidate": candidate, "rules": _RECALLING}
    found = connection.execute(_OF_THE_CALIBRATION, asked).fetchall()
    triggers = [f"calibration, in {plain(source)}: {plain(message, 300)}" for source, message in found]
    heads = connection.execute(_BEYOND_CALIBRATION, {"candidate": candidate}).fetchall()
    beyond = [head for is_beyond, *head in heads if is_beyond]
    if beyond:
        drift, layer, kv_head, tensor, workload = max(beyond)
        triggers.append(
            f"activation drift: {len(beyond):,} of {len(heads):,} heads reach beyond their calibrated "
            f"maximum and the covered range, furthest layer {layer} head {kv_head} {tensor.upper()}: "
            f"{drift:.2g} × in {plain(workload)}"
        )
    return triggers
