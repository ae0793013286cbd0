"""Every variant against BF16 on the same prompts: the one function behind `kvtrace quality compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import OutcomesError
from kvtrace.figures import count, percent
from kvtrace.outcomes.join import join_to_trace
from kvtrace.outcomes.table import all_rows
from kvtrace.plain_text import plain
from kvtrace.quality.comparison import (
    WORST_FIRST,
    JoinedAnswers,
    QualityComparison,
    SegmentQuality,
    VariantQuality,
    Verdict,
)
from kvtrace.quality.decide import Decided, decide
from kvtrace.quality.leakage import check_leakage
from kvtrace.quality.looks import take_look
from kvtrace.quality.measure import Measured, measure, measure_noise
from kvtrace.quality.pairs import ALL, by_variant, data_digest, pair
from kvtrace.quality.review import disagreements
from kvtrace.stats import fractions
from kvtrace.stats.discoveries import PROCEDURE, q_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvtrace.outcomes.join import Joined
    from kvtrace.outcomes.table import OutcomeTable
    from kvtrace.quality.moved import LogprobComparison
    from kvtrace.quality.pairs import Answers, PairKey
    from kvtrace.quality.policy import QualityPolicy
    from kvtrace.trace.reader import Trace

MAX_UNPAIRED: Final = 0.05
"""Share of answers that only one of two variants gave; with more there is no verdict."""
_METHOD: Final = f"{fractions.METHOD}; of differences drawn, by request, conversation or document"


def compare_quality(
    tables: Sequence[OutcomeTable],
    policy: QualityPolicy,
    *,
    baseline: str = "bf16-a",
    noise: str | None = "bf16-b",
    looks_file: Path | None = None,
    trace: Trace | None = None,
    calibrations: Sequence[Path] = (),
    logprobs: LogprobComparison | None = None,
) -> QualityComparison:
    """Return every other variant of the tables against `baseline`.

    noise: the variant that is a second run of the baseline; None, or absent from the tables: not measured.
    looks_file: where looks are counted, for policies that plan several. trace: whose requests the answers are
    joined with; it may be of another run of the same prompts. calibrations: whose prompts must not be among
    those evaluated. logprobs: of the same variants; they explain, and decide nothing.
    Raises OutcomesError: the baseline or any other variant is absent, or answers do not pair. InputError: as
    `take_look`.
    """
    variants = by_variant(all_rows(tables))
    noise = noise if noise in variants else None
    others = [name for name in variants if name not in (baseline, noise)]
    if baseline not in variants or not others:
        raise OutcomesError(
            f"{tables[0].path}: has answers of {', '.join(map(plain, variants))}; "
            f"expected the baseline {plain(baseline)} and at least one variant; --baseline names another"
        )
    before, again = variants[baseline], variants[noise] if noise else None
    joined = None if trace is None else join_to_trace(before.values(), tables[0], trace)
    traced = _prompts(joined, trace)
    leakage = tuple(check_leakage(one, before, tables[0], traced) for one in calibrations)
    planned = policy.limits.looks
    confidence = 1 - (1 - policy.confidence) / planned
    taken = take_look(
        looks_file,
        planned=planned,
        data=data_digest(variants),
        num_pairs=max(len(before.keys() & variants[name].keys()) for name in others),
        policy=policy.sha256,
    )
    segments = (ALL, *policy.limits.protected)
    measured = {
        (name, segment): measure(
            pair(before, variants[name], again, segment), policy.limits.of(segment).margin or 0.0, confidence
        )
        for name in others
        for segment in segments
    }
    found_q = _q_values(measured)
    blocked = {name: _blocked(before, variants[name], again, policy, taken) for name in others}
    compared = tuple(
        _variant(
            name,
            before,
            variants[name],
            again,
            segments,
            policy,
            measured,
            found_q,
            confidence,
            blocked[name],
        )
        for name in others
    )
    return QualityComparison(
        verdict=_worst([one.verdict for one in compared]),
        tables=tuple(str(one.path) for one in tables),
        baseline=baseline,
        noise=noise,
        policy_name=policy.name,
        policy_date=policy.date,
        policy_sha256=policy.sha256,
        confidence=policy.confidence,
        looks_planned=planned,
        looks_taken=taken,
        interval_method=_METHOD,
        multiple_testing=f"{PROCEDURE}, over variants and segments, of claims of a loss beyond the margin",
        noise_pair=None
        if again is None
        else measure_noise(pair(before, again, None, ALL), policy.confidence),
        joined=None if joined is None or trace is None else _joined(joined, trace),
        leakage=leakage,
        variants=compared,
        logprobs=logprobs,
        review=tuple(row for name in others for row in disagreements(before, variants[name], again, name)),
    )


def _prompts(joined: Joined[int] | None, trace: Trace | None) -> dict[PairKey, list[str]]:
    """Return the prompt hashes that a trace has of each answer."""
    if joined is None or trace is None:
        return {}
    return {
        key: [found for one in requests if (found := trace.requests[one].prompt_hash) is not None]
        for key, requests in joined.requests_of.items()
    }


def _joined(found: Joined[int], trace: Trace) -> JoinedAnswers:
    return JoinedAnswers(
        trace=str(trace.path),
        num_answers=found.num_answers,
        num_by_client_id=found.num_by_client_id,
        num_by_external_id=found.num_by_external_id,
        num_by_prompt=found.num_by_prompt,
        num_ambiguous=found.num_ambiguous,
        num_sampled=found.num_sampled,
    )


def _variant(
    name: str,
    before: Answers,
    after: Answers,
    again: Answers | None,
    segments: Sequence[str],
    policy: QualityPolicy,
    measured: Mapping[tuple[str, str], Measured | None],
    found_q: Mapping[tuple[str, str], float],
    confidence: float,
    blocked: Decided | None,
) -> VariantQuality:
    parts = tuple(
        _segment(segment, measured[name, segment], policy, found_q.get((name, segment)), confidence, blocked)
        for segment in segments
    )
    paired = before.keys() & after.keys()
    return VariantQuality(
        variant=name,
        verdict=_worst([part.verdict for part in parts]),
        num_answers=len(after),
        num_paired=len(paired),
        num_unpaired=len(before.keys() ^ after.keys()),
        num_unjudged=_num_unjudged(before, after, again),
        num_same_prompt=sum(
            before[key].prompt_digest is not None and after[key].prompt_digest is not None for key in paired
        ),
        segments=parts,
    )


def _segment(
    segment: str,
    found: Measured | None,
    policy: QualityPolicy,
    q_value: float | None,
    confidence: float,
    blocked: Decided | None,
) -> SegmentQuality:
    limits = policy.limits.of(segment)
    claimed = q_value is not None and q_value <= policy.false_discovery_rate / policy.limits.looks
    decided = decide(found, limits, confidence=confidence, claimed=claimed, blocked=blocked)
    return SegmentQuality(
        segment=segment,
        verdict=decided.verdict,
        reason_id=decided.reason_id,
        reason=decided.reason,
        margin=limits.margin or 0.0,
        floor=limits.floor or 0.0,
        min_pairs=limits.pairs or 1,
        difference=found.difference if found else None,
        num_baselines=found.num_baselines if found else 0,
        baseline_pass=found.baseline_pass if found else None,
        candidate_pass=found.candidate_pass if found else None,
        noise_discordant_frac=found.noise_discordant_frac if found else None,
        more_than_noise=found.more_than_noise if found else None,
        q_value=q_value,
        pairs_missing=decided.pairs_missing,
    )


def _q_values(measured: Mapping[tuple[str, str], Measured | None]) -> dict[tuple[str, str], float]:
    tested = {place: found.p_above for place, found in measured.items() if found is not None}
    return dict(zip(tested, q_values(list(tested.values())).tolist(), strict=True))


def _blocked(
    before: Answers, after: Answers, again: Answers | None, policy: QualityPolicy, taken: int
) -> Decided | None:
    """Return what stands against any verdict on a variant."""
    planned = policy.limits.looks
    if taken > planned:
        late = f"this is look {taken:,}, and the policy plans {planned:,}"
        return Decided(Verdict.too_few, "too-many-looks", late)
    if unjudged := _num_unjudged(before, after, again):
        return Decided(Verdict.cannot_tell, "unjudged", f"{count(unjudged, 'answer')} not judged")
    shares = {
        "unpaired": _unpaired_frac(before, after),
        "without a second run": _unpaired_frac(before, again)
        if again is not None and policy.limits.noise_pair
        else 0.0,
    }
    for what, share in shares.items():
        if share > MAX_UNPAIRED:
            many = f"{percent(share)} of answers are {what}, and {percent(MAX_UNPAIRED)} may be"
            return Decided(Verdict.cannot_tell, "unpaired", many)
    if policy.limits.noise_pair and again is None:
        lacking = "the baseline was run once: a second run must say what is noise"
        return Decided(Verdict.cannot_tell, "no-noise-pair", lacking)
    return None


def _unpaired_frac(one: Answers, other: Answers) -> float:
    return len(one.keys() ^ other.keys()) / len(one.keys() | other.keys())


def _num_unjudged(before: Answers, after: Answers, again: Answers | None) -> int:
    runs = (before, after) if again is None else (before, after, again)
    return sum(
        any(key in run and run[key].outcome == "unjudged" for run in runs)
        for key in before.keys() & after.keys()
    )


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    return min(verdicts, key=WORST_FIRST.index)
