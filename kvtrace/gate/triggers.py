"""The recalibration triggers that fired: why the scales should be calibrated or approved anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.gate.envelope import outside_words
from kvtrace.gate.outcome import SegmentOutcome, Verdict
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from kvtrace.gate.envelope import Outside
    from kvtrace.gate.policy import Approved
    from kvtrace.runs.open import Run
    from kvtrace.runs.record import SourceRecord

_OF_THE_CALIBRATION: Final = """
SELECT source, message
FROM findings
WHERE candidate = $candidate AND severity <> 'note'
  AND id IN ('wrong-model', 'stale-artifact', 'weights-changed', 'outside-envelope', 'short-calibration')
ORDER BY source, ordinal
"""
"""What the replay found when it held the artifact's calibration manifest against the trace."""

_BEYOND_CALIBRATION: Final = """
WITH heads AS (
  SELECT layer, kv_head, tensor, calibrated_amax, covered_amax,
    max({'amax': max_abs, 'workload': workload}) AS widest
  FROM scaled_cells
  WHERE candidate = $candidate AND calibrated_amax > 0
  GROUP BY source, layer, kv_head, tensor, calibrated_amax, covered_amax
)
SELECT count(*), (SELECT count(*) FROM heads), max({
  'drift': widest.amax / calibrated_amax, 'layer': layer, 'kv_head': kv_head, 'tensor': tensor,
  'workload': widest.workload})
FROM heads
WHERE widest.amax > calibrated_amax AND widest.amax > covered_amax
"""
"""A maximum grows with the sample, so heads count only where the scale does not cover the live one either."""


def fired_triggers(
    run: Run,
    connection: duckdb.DuckDBPyConnection,
    candidate: str,
    approved: Approved,
    outside: Iterable[Outside],
    segments: Sequence[SegmentOutcome],
) -> tuple[str, ...]:
    """Return why the scales should be calibrated or approved anew, a phrase each.

    connection: to the run, with the views and measures of queries/.
    """
    changed = [
        f"{what} is {plain(found, 80)} in {plain(source.name)}, approved was {plain(wanted, 80)}"
        for source in run.record.sources
        for what, found, wanted in _differences(source, approved)
    ]
    mixed = [
        f"the traces differ in {what}: {', '.join(sorted(values))}"
        for what, values in _facts_by_name(run.record.sources).items()
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


def _calibration_triggers(connection: duckdb.DuckDBPyConnection, candidate: str) -> list[str]:
    """Return in what the traces have left the artifact's own calibration; nothing without a manifest."""
    found = connection.execute(_OF_THE_CALIBRATION, {"candidate": candidate}).fetchall()
    triggers = [f"calibration, in {plain(source)}: {plain(message, 300)}" for source, message in found]
    beyond = connection.execute(_BEYOND_CALIBRATION, {"candidate": candidate}).fetchone()
    if beyond and beyond[0]:
        count, total, worst = beyond
        triggers.append(
            f"activation drift: {count:,} of {total:,} heads reach beyond their calibrated maximum and the "
            f"covered range, furthest layer {worst['layer']} head {worst['kv_head']} "
            f"{worst['tensor'].upper()}: {worst['drift']:.2g} × in {plain(worst['workload'])}"
        )
    return triggers


def _differences(source: SourceRecord, approved: Approved) -> Iterable[tuple[str, str, str]]:
    facts = _facts(source)
    for what, wanted in approved.model_dump().items():
        found = facts.get(what)
        if wanted is not None and found != wanted:
            yield what, found or "not recorded", wanted


def _facts_by_name(sources: Iterable[SourceRecord]) -> dict[str, set[str]]:
    by_name: dict[str, set[str]] = {}
    for source in sources:
        for what, value in _facts(source).items():
            if value is not None:
                by_name.setdefault(what, set()).add(plain(value, 80))
    return by_name


def _facts(source: SourceRecord) -> dict[str, str | None]:
    """Return what a policy may approve, by the policy's names."""
    return {
        "weights_digest": source.model.weights_digest,
        "tokenizer_digest": source.model.tokenizer_digest,
        "chat_template_digest": source.model.chat_template_digest,
        "attention_backend": ", ".join(source.attention_backends) or None,
        "engine_version": f"{source.engine.name} {source.engine.version}",
        "kv_cache_dtype": source.engine.kv_cache_dtype,
    }
