"""The supported envelope as a sentence, what was not tested, and the recalibration triggers that fired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.gate.outcome import SegmentOutcome, Verdict
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from kvtrace.gate.policy import Approved, Policy
    from kvtrace.runs.open import Run
    from kvtrace.runs.record import SourceRecord

NOT_VISIBLE: Final = (
    "errors compounding through the layers, task accuracy, kernel accumulation and cache transfer "
    "(a replay cannot see them)"
)
_UNITS: Final = {
    "vectors_clipped_frac": "of its vectors clipped",
    "vectors_out_of_range_frac": "of its vectors out of range",
    "clipped_frac": "of its values clipped",
    "out_of_range_frac": "of its values out of range",
    "clip_error_frac": "of its squared error from clipping",
}

_OUTSIDE: Final = """
SELECT workload, workload IN (SELECT workload FROM gate_segments) AS is_protected,
  count(DISTINCT (source, request)) AS num_requests, count(*) AS num_tokens, max(position) AS last_position
FROM rows JOIN requests USING (source, request)
  ANTI JOIN gate_rows USING (source, "row")
WHERE source IN (SELECT source FROM scales WHERE candidate = $candidate)
GROUP BY workload
ORDER BY workload
"""


_TRACES_WITHOUT: Final = """
SELECT DISTINCT source FROM requests
WHERE source NOT IN (SELECT source FROM scales WHERE candidate = $candidate)
ORDER BY source
"""


@dataclass(frozen=True, slots=True)
class Outside:
    """Captured traffic of one workload that no segment protects."""

    workload: str
    is_protected: bool
    """Whether segments protect other positions, phases or lengths of it."""
    num_requests: int
    num_tokens: int
    last_position: int


def captured_outside(connection: duckdb.DuckDBPyConnection, candidate: str) -> tuple[Outside, ...]:
    """Return what was captured outside every segment; the tables of `measure` must be there."""
    return tuple(Outside(*row) for row in connection.execute(_OUTSIDE, {"candidate": candidate}).fetchall())


def traces_without(connection: duckdb.DuckDBPyConnection, candidate: str) -> tuple[str, ...]:
    """Return the traces of the run in which the candidate does not exist."""
    rows = connection.execute(_TRACES_WITHOUT, {"candidate": candidate}).fetchall()
    return tuple(row[0] for row in rows)


def envelope_sentence(candidate: str, policy: Policy, segments: Sequence[SegmentOutcome]) -> str:
    """Return what the check supports in words, bounds included; only segments that are within count."""
    within = [one for one in segments if one.verdict is Verdict.within]
    name = plain(candidate)
    if not within:
        return f"No envelope: {name} is within policy {plain(policy.name)} in no protected segment."
    parts = "; ".join(_segment_words(one) for one in within)
    total = "every" if len(within) == len(segments) else f"{len(within)} of {len(segments)}"
    kind = "segment" if total == "every" else "segments"
    return (
        f"{name} is within policy {plain(policy.name)} ({policy.date}) in {total} protected {kind}: {parts}."
    )


def untested_parts(
    outside: Iterable[Outside], absent_from: Iterable[str], segments: Sequence[SegmentOutcome]
) -> tuple[str, ...]:
    """Return what the envelope does not speak of, a phrase each."""
    untold = [
        f"{one.name}: {one.reason or one.verdict.value}"
        for one in segments
        if one.verdict is Verdict.not_enough
    ]
    unprotected = [_outside_words(one) for one in outside]
    absent = [f"trace {plain(name)}: the candidate does not exist there" for name in absent_from]
    return (*untold, *unprotected, *absent, NOT_VISIBLE)


def fired_triggers(
    run: Run, approved: Approved, outside: Iterable[Outside], segments: Sequence[SegmentOutcome]
) -> tuple[str, ...]:
    """Return why the scales should be calibrated or approved anew, a phrase each."""
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
    traffic = [f"traffic: {_outside_words(one)}" for one in outside]
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
    return (*changed, *mixed, *traffic, *breached, *nonfinite)


def _segment_words(one: SegmentOutcome) -> str:
    assert one.seen_positions, "a segment that is within has rows"
    assert one.seen_prompt_tokens, "a segment that is within has requests"
    assert one.seen_output_tokens, "a segment that is within has requests"
    bounds = ", ".join(_bound_words(limit.limit, limit.bound, one) for limit in one.limits)
    phase = f" {one.phase}" if one.phase else ""
    return (
        f"{plain(one.workload)}{phase}, prompts of {_span(one.seen_prompt_tokens)} and outputs of "
        f"{_span(one.seen_output_tokens)} tokens, positions {_span(one.seen_positions)} "
        f"({one.num_requests:,} requests, {one.num_tokens:,} tokens), each head with {bounds}"
    )


def _bound_words(limit: str, bound: float, one: SegmentOutcome) -> str:
    estimated = any(found.limit == limit and not found.has_interval for found in one.limits)
    doubt = " (estimated)" if estimated else ""
    if limit == "sqnr_db":
        return f"at least {bound:g} dB SQNR{doubt}"
    return f"at most {100 * bound:g} % {_UNITS[limit]}{doubt}"


def _span(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]:,} to {bounds[1]:,}"


def _outside_words(one: Outside) -> str:
    amount = f"{one.num_tokens:,} captured tokens of {one.num_requests:,} requests"
    if one.is_protected:
        return (
            f"workload {plain(one.workload)} beyond the policy's positions, phases or lengths "
            f"({amount}, up to position {one.last_position:,})"
        )
    return f"workload {plain(one.workload)}, which the policy does not name ({amount})"


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
