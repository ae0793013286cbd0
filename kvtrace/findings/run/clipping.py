"""K clips, V clips: values beyond the range, judged by the squared error that clipping them costs.

Out of range alone is no fault: up to 464/448 of the range a value rounds to its end. The limits are shares of
Σ x². Scales half as wide as they should be cost 2 to 4 % and raised a small model's perplexity by 17 %, a
factor of 1.5 costs 0.8 %; a 99.9 % percentile, which clips by choice, stays below 0.3 % over everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent, times
from kvtrace.findings.finding import TENSORS, Finding, confidence_of
from kvtrace.findings.remedies import recalibrate_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import Row, bound, stratum_of
from kvtrace.findings.run.example import CLIPS, Clipped, RunExample, RunRule
from kvtrace.findings.run.own_dtype import without_fp8
from kvtrace.findings.wording import some_heads
from kvtrace.plain_text import plain
from kvtrace.stats.fractions import fraction_intervals, request_sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.finding import Head, Severity, Tensor
    from kvtrace.findings.run.case import Case, Subject

HEAD_LIMIT: Final = 0.005
WORKLOAD_OR_PHASE_LIMIT: Final = 0.01
OCTAVE_LIMIT: Final = 0.02
"""A stratum holds fewer values than the whole, so its share wanders more: see the table of percentiles and
strata in tests/incidents."""
_ERROR_MEAN: Final = 0.02
_ERROR_HEAD: Final = 0.1
_MIN_REQUESTS: Final = 3
_MIN_REQUESTS_IN_OCTAVE: Final = 5
"""The first positions hold a token a request, unlike all others: a few of them say nothing."""

_EVIDENCE: Final = """
SELECT layer, kv_head, num_values, num_clipped,
  share(w_sq_clip_error, w_sq_signal) AS clip_error_of_signal,
  clip_error_frac, max_abs, covered_amax
FROM value_sums(chosen_cells)
  JOIN covered_heads USING (candidate, tensor, layer, kv_head)
WHERE candidate = $candidate AND tensor = $tensor AND num_clipped > 0
ORDER BY clip_error_of_signal DESC, layer, kv_head
"""
_REQUESTS: Final = """
SELECT source, request, n, clipped AS x
FROM request_vectors(chosen_tokens)
WHERE candidate = $candidate AND tensor = $tensor
  AND layer = $layer AND kv_head = $kv_head AND n > 0
ORDER BY source, request
"""
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class ClippingHead:
    """A head in which clipping costs more than the limit, over everything or in one stratum."""

    head: Head
    whole: float
    """Clip error over everything; share of Σ x²."""
    worst: float
    """The same in the stratum that exceeds its limit most; `whole` if that does."""
    where: str
    """That stratum in words; empty: everything."""


def clipping_heads(case: Case, candidate: str) -> list[ClippingHead]:
    """Return the heads that clip beyond the limits, worst first."""
    return _clipping(case, candidate).heads


@dataclass(frozen=True, slots=True)
class _Clipping:
    """What the strata of one candidate come to."""

    heads: list[ClippingHead]
    ruined: frozenset[str]
    """Tensors that clipping ruins, or a head of them, in any stratum that counts."""


def _clipping(case: Case, candidate: str) -> _Clipping:
    return case.once("clipping", candidate, lambda: _summed_up(case, candidate))


def _summed_up(case: Case, candidate: str) -> _Clipping:
    worst: dict[Head, Row] = {}
    strata = _strata(case, candidate)
    for row in strata:
        head = (row["layer"], row["kv_head"], row["tensor"])
        known = worst.get(head)
        if row["clip_error"] > _limit(row) and (
            known is None or row["clip_error"] / _limit(row) > known["clip_error"] / _limit(known)
        ):
            worst[head] = row
    whole = {
        (row["layer"], row["kv_head"], row["tensor"]): row["clip_error"] or 0.0
        for row in case.whole_heads(candidate)
    }
    heads = [
        ClippingHead(head, whole[head], whole[head], "")
        if whole[head] > HEAD_LIMIT
        else ClippingHead(head, whole[head], row["clip_error"], _where(row))
        for head, row in worst.items()
    ]
    return _Clipping(
        sorted(heads, key=lambda one: (-one.whole, one.head)),
        frozenset(row["tensor"] for row in strata if _is_ruin(row)),
    )


def _is_ruin(row: Row) -> bool:
    return row["mean_clip_error"] > _ERROR_MEAN or (
        row["position_octave"] is None and row["clip_error"] > _ERROR_HEAD
    )


def check(case: Case) -> Iterator[Finding]:
    """Yield a finding per judged candidate and tensor in which heads clip beyond the limits."""
    for subject in case.subjects:
        if not subject.is_valid:
            continue
        clipping = clipping_heads(case, subject.name)
        for tensor in TENSORS:
            own = [one for one in clipping if one.head[2] == tensor]
            if own:
                yield _finding(case, subject, tensor, own)


def severity_of(case: Case, candidate: str, tensor: str) -> Severity:
    """Return error where clipping ruins a tensor, or a head, in any stratum that counts; else warning."""
    return "error" if tensor in _clipping(case, candidate).ruined else "warning"


def _strata(case: Case, candidate: str) -> list[Row]:
    """Return the strata that have requests enough to count."""
    return [
        row
        for row in case.clipping_strata(candidate, HEAD_LIMIT)
        if case.num_requests.get(stratum_of(row), 0) >= _least_requests(row)
    ]


def _limit(row: Row) -> float:
    if row["position_octave"] is not None:
        return OCTAVE_LIMIT
    return HEAD_LIMIT if row["workload"] is None and row["phase"] is None else WORKLOAD_OR_PHASE_LIMIT


def _where(row: Row) -> str:
    if row["workload"] is not None:
        return f" in workload {plain(row['workload'], 40)}"
    if row["phase"] is not None:
        return f" in {row['phase']}"
    octave = row["position_octave"]
    return f" at positions {2**octave if octave else 0:,} to {2 ** (octave + 1) - 1:,}"


def _least_requests(row: Row) -> int:
    """A stratum of one or two requests says nothing of the others like it; the whole trace is what it is."""
    if stratum_of(row) == (None, None, None):
        return 1
    return _MIN_REQUESTS if row["position_octave"] is None else _MIN_REQUESTS_IN_OCTAVE


def _finding(case: Case, subject: Subject, tensor: Tensor, clipping: Sequence[ClippingHead]) -> Finding:
    sql = bound(_EVIDENCE, candidate=subject.name, tensor=tensor)
    rows = case.rows(sql)
    worst = next(row for row in rows if (row["layer"], row["kv_head"], tensor) == clipping[0].head)
    heads = tuple(one.head for one in clipping)
    share, low, high, affected, requests = _vectors_of_worst(case, subject, clipping[0].head)
    total = [row for row in case.whole_heads(subject.name) if row["tensor"] == tensor]
    beyond = max(row["max_abs"] / row["covered_amax"] for row in rows if row["covered_amax"])
    return Finding(
        id=f"{tensor}-clips",
        severity="note" if _is_of_few(affected, requests) else severity_of(case, subject.name, tensor),
        confidence=confidence_of(affected),
        candidate=subject.name,
        message=(
            f"{tensor.upper()} clips enough to matter in {len(heads)} of {count(len(total), 'head')} "
            f"({some_heads(heads)}). Loses most: layer {worst['layer']} head {worst['kv_head']} loses "
            f"{percent(clipping[0].worst)} of its energy{clipping[0].where} and uses "
            f"{times(worst['max_abs'] / worst['covered_amax'])} of its range. It clips "
            f"{percent(worst['num_clipped'] / worst['num_values'])} of its values, in an estimated "
            f"{percent(share)} of its tokens (95 %: {percent(low)} to {percent(high)}) and in "
            f"{affected} of {count(requests, 'request')}"
        ),
        action=_action(case, subject, beyond),
        command=recalibrate_command(case, subject),
        evidence=tuple(rows[:_SHOWN]),
        sql=sql,
        heads=heads,
        tensors=(tensor,),
        layers=tuple(sorted({layer for layer, _, _ in heads})),
        num_requests=requests,
        impact=clipping[0].worst,
    )


def _vectors_of_worst(case: Case, subject: Subject, head: Head) -> tuple[float, float, float, int, int]:
    """Return the share of the head's vectors that clip, its interval, requests affected and all."""
    layer, kv_head, tensor = head
    sql = bound(_REQUESTS, candidate=subject.name, tensor=tensor, layer=layer, kv_head=kv_head)
    columns = case.columns(sql)
    found = fraction_intervals(request_sums(columns["x"], columns["n"]))
    return (
        float(found.fraction),
        float(found.low),
        float(found.high),
        int(found.num_affected),
        int(found.num_requests),
    )


def _is_of_few(affected: int, requests: int) -> bool:
    """Return whether too few requests clip to say anything of the others; of a few two may be half."""
    return affected < _MIN_REQUESTS and 2 * affected < requests


def _action(case: Case, subject: Subject, beyond: float) -> str:
    return (
        f"Calibrate on this traffic with headroom: the values need {times(beyond)} the range, and E4M3 makes "
        f"headroom nearly free. Until then serve {without_fp8(case, subject)}"
    )


K_CLIPS: Final = RunRule(
    id="k-clips",
    headline="The scales do not cover {tensors} in {heads}",
    what_if="These scales would clip {tensors} in {heads}",
    role="symptom",
    loss="clips",
    tier=Tier.symptom,
    mended_by="recalibrate",
    check=check,
    invalid=(RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()}),),
    valid=(
        RunExample(sums={(0, 0, "v"): CLIPS}, clipped={(0, 0, "v"): Clipped()}),
        # Some values leave the range at next to no cost.
        RunExample(sums={(0, 0, "k"): CLIPS | {"sum_sq_clip_error": 4e3}}, clipped={(0, 0, "k"): Clipped()}),
    ),
)


V_CLIPS: Final = RunRule(
    id="v-clips",
    headline="The scales do not cover {tensors} in {heads}",
    what_if="These scales would clip {tensors} in {heads}",
    role="symptom",
    loss="clips",
    tier=Tier.symptom,
    mended_by="recalibrate",
    check=check,
    invalid=(RunExample(sums={(0, 0, "v"): CLIPS}, clipped={(0, 0, "v"): Clipped()}),),
    valid=(
        RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()}),
        # Some values leave the range at next to no cost.
        RunExample(sums={(0, 0, "v"): CLIPS | {"sum_sq_clip_error": 4e3}}, clipped={(0, 0, "v"): Clipped()}),
    ),
)
