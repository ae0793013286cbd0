"""Limits on harm: the residual stream's error, and harm against another candidate's, paired by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.gate.outcome import HarmOutcome, Verdict
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from kvtrace.gate.policy import HarmLimits
    from kvtrace.query import RunConnection

METHOD: Final = "95 % delete-a-group jackknife over groups of requests, on the logarithm"
_HARM: Final = """
SELECT knowledge, own.harm, harm_factor(own.harm, own.without, 1, [1 FOR x IN own.without]) AS factor,
  own.harm / nullif(other.harm, 0) AS ratio,
  harm_factor(own.harm, own.without, other.harm, other.without) AS ratio_factor
FROM harm_totals AS own CROSS JOIN harm_knowledge
  LEFT JOIN harm_totals AS other ON other.candidate = $baseline
WHERE own.candidate = $candidate
"""
_IS_THERE: Final = "SELECT count(*) FROM candidates WHERE candidate = $baseline AND status = 'valid'"


def decide_harm(
    connection: RunConnection, candidate: str, limits: HarmLimits | None
) -> tuple[HarmOutcome, ...]:
    """Return the verdict of each limit on harm that is set, over all traffic with queries.

    Breached where the whole interval is beyond the limit, within where none of it is; else there is not
    enough coverage. Raises InputError: the run has no valid candidate of the baseline's name.
    """
    if limits is None:
        return ()
    if limits.max_ratio is not None:
        (known,) = connection.execute(_IS_THERE, {"baseline": limits.baseline}).fetchall()
        if not known[0]:
            raise InputError(
                f"[harm] baseline {plain(limits.baseline)!r}: the run has no valid candidate of that name"
            )
    rows = connection.execute(_HARM, {"candidate": candidate, "baseline": limits.baseline}).fetchall()
    if not rows:
        lacking = "the run holds no harm; replay a trace with queries"
        return tuple(
            HarmOutcome(limit=name, bound=bound, verdict=Verdict.not_enough, reason=lacking)
            for name, bound in limits.given().items()
        )
    ((knowledge, harm, factor, ratio, ratio_factor),) = rows
    found = []
    if limits.max_residual_error is not None:
        found.append(_decided("max_residual_error", limits.max_residual_error, harm, factor, knowledge))
    if limits.max_ratio is not None:
        found.append(_decided("max_ratio", limits.max_ratio, ratio, ratio_factor, None, limits.baseline))
    return tuple(found)


def _decided(
    limit: str,
    bound: float,
    value: float | None,
    factor: float | None,
    knowledge: str | None,
    baseline: str | None = None,
) -> HarmOutcome:
    low, high = (None, None) if value is None or factor is None else (value / factor, value * factor)
    verdict, reason = Verdict.not_enough, None
    if knowledge not in (None, "residual"):
        value = low = high = None
        reason = (
            "harm is known of attention's output alone; "
            "it takes --checkpoint and a capture in an eager engine"
        )
    elif value is None:
        reason = "there is no harm to compare with"
    elif value == 0:
        verdict = Verdict.within  # nothing differs in any request
    elif low is None or high is None:
        reason = "too few groups of requests have an interval; it takes 8 requests with queries"
    elif low > bound:
        verdict = Verdict.breached
    elif high <= bound:
        verdict = Verdict.within
    else:
        reason = "its interval reaches across the limit"
    return HarmOutcome(
        limit=limit,
        bound=bound,
        baseline=baseline,
        value=value,
        low=low,
        high=high,
        verdict=verdict,
        reason=reason,
    )
