"""The supported envelope as a sentence, and what was not tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.gate.outcome import SegmentOutcome, Verdict
from kvtrace.not_visible import not_visible
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtrace.gate.outcome import LimitOutcome
    from kvtrace.gate.policy import Policy
    from kvtrace.query import RunConnection

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
FROM tokens
  SEMI JOIN (FROM candidate_sources WHERE candidate = $candidate) USING (source)
  ANTI JOIN gate_rows USING (source, "row")
GROUP BY workload
ORDER BY workload
"""


_TRACES_WITHOUT: Final = """
SELECT DISTINCT source
FROM requests ANTI JOIN (FROM candidate_sources WHERE candidate = $candidate) USING (source)
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


def captured_outside(connection: RunConnection, candidate: str) -> tuple[Outside, ...]:
    """Return what was captured outside every segment; the tables of `measure` must be there."""
    return tuple(Outside(*row) for row in connection.execute(_OUTSIDE, {"candidate": candidate}).fetchall())


def traces_without(connection: RunConnection, candidate: str) -> tuple[str, ...]:
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
    unprotected = [outside_words(one) for one in outside]
    absent = [f"trace {plain(name)}: the candidate does not exist there" for name in absent_from]
    return (*untold, *unprotected, *absent, f"{not_visible()} (a replay cannot see them)")


def _segment_words(one: SegmentOutcome) -> str:
    assert one.seen_positions, "a segment that is within has rows"
    assert one.seen_prompt_tokens, "a segment that is within has requests"
    assert one.seen_output_tokens, "a segment that is within has requests"
    bounds = ", ".join(_bound_words(limit) for limit in one.limits)
    kept = f"each head with {bounds}" if any(limit.num_heads for limit in one.limits) else "no head quantized"
    phase = f" {one.phase}" if one.phase else ""
    return (
        f"{plain(one.workload)}{phase}, prompts of {_span(one.seen_prompt_tokens)} and outputs of "
        f"{_span(one.seen_output_tokens)} tokens, positions {_span(one.seen_positions)} "
        f"({one.num_requests:,} requests, {one.num_tokens:,} tokens), {kept}"
    )


def _bound_words(limit: LimitOutcome) -> str:
    if limit.limit == "sqnr_db":
        return f"at least {limit.bound:g} dB SQNR{_doubt(limit)}"
    return f"at most {100 * limit.bound:g} % {_UNITS[limit.limit]}{_doubt(limit)}"


def _doubt(limit: LimitOutcome) -> str:
    if not limit.has_interval:
        return " (estimated)"
    return f" (estimated in {limit.num_estimated:,} heads)" if limit.num_estimated else ""


def _span(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]:,} to {bounds[1]:,}"


def outside_words(one: Outside) -> str:
    """Return captured traffic outside the policy in words."""
    amount = f"{one.num_tokens:,} captured tokens of {one.num_requests:,} requests"
    if one.is_protected:
        return (
            f"workload {plain(one.workload)} beyond the policy's positions, phases or lengths "
            f"({amount}, up to position {one.last_position:,})"
        )
    return f"workload {plain(one.workload)}, which the policy does not name ({amount})"
