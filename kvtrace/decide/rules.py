"""What the evidence says for each decision: proven breaches, what lacks, and what speaks for going out."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from kvtrace.decide.decision import Reason, ReasonId, Word
from kvtrace.decide.selected import own_check, pair_of, quality_of, same_policy, variant_of, way_back
from kvtrace.figures import count, number, percent
from kvtrace.gate.outcome import Verdict as CheckVerdict
from kvtrace.plain_text import plain
from kvtrace.quality.comparison import Verdict
from kvtrace.serving.goodput import low_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.decide.evidence import Found
    from kvtrace.serving.report import Gain

_SCALES = (
    "vectors_clipped_frac",
    "vectors_out_of_range_frac",
    "clipped_frac",
    "out_of_range_frac",
    "clip_error_frac",
)
"""Limits whose breach new scales can mend; an SQNR may be low by rounding alone."""


def breaches(found: Found) -> Iterator[Reason]:
    """Yield each proven breach of a limit."""
    quality = quality_of(found)
    for segment in quality.segments if quality is not None and same_policy(found) else ():
        if segment.verdict is Verdict.breached:
            yield _reason("answers-lost", Word.roll_back, plain(segment.reason, 300), segment.segment)
    pair = pair_of(found)
    # What is not judged may be right: then goodput is a range, and no loss of it is proven.
    for gain in pair.classes if pair is not None and not _num_unjudged(found) else ():
        allowed = -found.contract.serving.goodput_loss * (gain.baseline or 0.0)
        one = gain.difference
        if one is not None and one.high is not None and one.high < allowed:
            yield _reason(
                "goodput-lost",
                Word.roll_back,
                f"at least {number(-one.high)} accepted a second are lost of {number(gain.baseline)}",
                gain.name,
            )
    yield from _rejections(found)
    variant = variant_of(found, found.candidate)
    corrupted = sum(one.grown.get("corrupted", 0.0) for one in variant.engine)
    if corrupted:
        yield _reason("corrupted", Word.roll_back, f"{count(round(corrupted), 'request')} with NaN logits")
    check = own_check(found)
    if check is not None and check.verdict is CheckVerdict.breached:
        names = sorted({one.name for one in check.segments if one.verdict is CheckVerdict.breached})
        yield _reason(
            "activations-breach",
            Word.roll_back,
            f"kvtrace check is breached in {', '.join(plain(name) for name in names) or 'a limit'}",
        )


def _rejections(found: Found) -> Iterator[Reason]:
    most = found.contract.serving.max_rejected_frac
    used = [run for run in found.goodput.runs if run.variant == found.candidate and not run.problems]
    for name in found.contract.serving.classes:
        parts = [one for run in used for one in run.classes if one.name == name]
        rejected, offered = sum(one.rejected for one in parts), sum(one.offered for one in parts)
        low = low_end(rejected, offered, found.contract.confidence)
        if low > most:
            yield _reason(
                "rejected",
                Word.roll_back,
                f"at least {percent(low)} of requests are rejected, and {percent(most)} may be",
                name,
            )


def scales_to_blame(found: Found) -> bool:
    """Return whether the check found values out of their scales' range."""
    check = own_check(found)
    return check is not None and any(
        limit.limit in _SCALES and limit.verdict is CheckVerdict.breached
        for segment in check.segments
        for limit in segment.limits
    )


def lacks(found: Found) -> Iterator[Reason]:
    """Yield what is absent or too little for a decision."""
    yield from _quality_lacks(found)
    if found.check is not None and own_check(found) is None:
        yield _reason(
            "check-other-policy",
            Word.collect_more,
            "kvtrace check was of another candidate, or by other limits than this policy's",
        )
    least = found.contract.serving.runs
    for name in (found.baseline, found.candidate):
        variant = variant_of(found, name)
        if variant.unsupported is not None:
            continue
        if variant.num_used < least:
            yield _reason(
                "runs-too-few",
                Word.collect_more,
                f"{count(variant.num_used, 'run')} of {plain(name)} can be used, of {least:,} that are asked",
                name,
                least - variant.num_used,
            )
        for one in variant.classes:
            if variant.num_used and one.goodput is None:
                yield _reason(
                    "class-not-measured", Word.collect_more, f"no request in {plain(name)}", one.name
                )
        unjudged = _num_unjudged(found, name)
        if unjudged:
            yield _reason(
                "unjudged",
                Word.collect_more,
                f"{count(unjudged, 'answer')} of {plain(name)} not judged",
                name,
            )
        if variant.restarts:
            yield _reason(
                "restarted",
                Word.collect_more,
                f"the server of {plain(name)} was started anew {count(variant.restarts, 'time')}; "
                "run it again without",
                name,
            )
    yield from _gain_lacks(found)
    if way_back(found) is None:
        yield _reason(
            "way-back-not-measured",
            Word.collect_more,
            f"no reading of the {found.contract.capacity.rollback} case: give kvtrace capacity a --limit",
        )


def _quality_lacks(found: Found) -> Iterator[Reason]:
    quality = quality_of(found)
    if quality is None:
        yield _reason(
            "quality-not-measured", Word.collect_more, f"no answers of {plain(found.candidate)} were compared"
        )
        return
    if not same_policy(found):
        yield _reason(
            "quality-other-policy",
            Word.collect_more,
            "answers were compared by other limits than this policy's; compare them again",
        )
        return
    for segment in quality.segments:
        if segment.verdict in (Verdict.too_few, Verdict.cannot_tell):
            yield _reason(
                "quality-too-few",
                Word.collect_more,
                f"{segment.verdict.value}: {plain(segment.reason, 300)}",
                segment.segment,
                segment.pairs_missing,
            )


def _gain_lacks(found: Found) -> Iterator[Reason]:
    """Yield a gain that seems to be there and is not shown; one that seems absent needs no more runs."""
    pair = pair_of(found)
    one = pair.all.difference if pair is not None else None
    if pair is None or one is None or pair.all.baseline is None:
        used = min(variant_of(found, name).num_used for name in (found.baseline, found.candidate))
        if used >= found.contract.serving.runs and not _num_unjudged(found):
            yield _reason(
                "gain-not-told", Word.collect_more, "no runs of equal number can be compared", None, used
            )
        return
    needed = found.contract.serving.goodput_gain * pair.all.baseline
    if one.low is None or one.high is None:
        if one.num_runs >= found.contract.serving.runs:
            yield _reason("gain-not-told", Word.collect_more, "two pairs of runs have no interval", None, 1)
    elif one.low < needed <= one.mean and one.mean > needed:
        half = one.mean - one.low
        more = ceil(one.num_runs * (half / (one.mean - needed)) ** 2) - one.num_runs
        yield _reason(
            "gain-not-told",
            Word.collect_more,
            f"the gain is {number(one.mean)} a second, perhaps {number(one.low)}; {number(needed)} is asked",
            None,
            max(1, more),
        )


def holds_back(found: Found) -> Iterator[Reason]:
    """Yield why the baseline is retained though nothing is breached and nothing lacks."""
    pair = pair_of(found)
    one = None if pair is None else pair.all.difference
    if pair is not None and one is not None and not gained(found, pair.all):
        needed = found.contract.serving.goodput_gain * (pair.all.baseline or 0.0)
        yield _reason(
            "no-gain",
            Word.retain,
            f"the gain is {number(one.mean)} accepted a second, and {number(needed)} is asked",
        )
    back = way_back(found)
    if back is not None and not back.fits and back.limit_to_set < 1:
        yield _reason("no-way-back", Word.retain, "the baseline's cache holds not one such request")


def speaks_for(found: Found) -> Iterator[Reason]:
    """Yield what a promotion rests on."""
    quality = quality_of(found)
    for segment in quality.segments if quality is not None and same_policy(found) else ():
        if segment.verdict is Verdict.within:
            yield _reason("answers-within", Word.promote, plain(segment.reason, 300), segment.segment)
    pair = pair_of(found)
    if pair is not None and gained(found, pair.all) and pair.all.difference is not None:
        low, mean = pair.all.difference.low, pair.all.difference.mean
        yield _reason(
            "goodput-gained",
            Word.promote,
            f"{number(mean)} more accepted a second, at least {number(low)}, of {number(pair.all.baseline)}",
        )
    back = way_back(found)
    if back is not None and back.fits:
        yield _reason("fits-back", Word.promote, f"the baseline holds the limit of {back.limit:,} requests")
    elif back is not None and back.limit_to_set:
        yield _reason(
            "limit-to-set",
            Word.promote,
            f"before going back set --max-num-seqs {back.limit_to_set:,} (now {back.limit:,})",
        )


def gained(found: Found, gain: Gain) -> bool:
    """Return whether the low end of a gain reaches what the policy asks, and is above zero."""
    one = gain.difference
    if one is None or one.low is None or gain.baseline is None:
        return False
    return one.low > 0 and one.low >= found.contract.serving.goodput_gain * gain.baseline


def _num_unjudged(found: Found, variant: str | None = None) -> int:
    """Return how many answers of runs that count are not judged; variant: None: of both."""
    return sum(
        run.all.unjudged for run in found.goodput.runs if not run.problems and variant in (None, run.variant)
    )


def _reason(
    id_: ReasonId, word: Word, text: str, of: str | None = None, missing: int | None = None
) -> Reason:
    return Reason(id=id_, word=word, of=of, text=text, missing=missing)
