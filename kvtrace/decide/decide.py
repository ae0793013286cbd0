"""One decision from all the evidence: the one function behind `kvtrace decide`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.decide.cell import cell_of, invalid_reasons
from kvtrace.decide.decision import Clip, Decision, HarmPart, Noise, Quality, Word
from kvtrace.decide.next_step import next_steps
from kvtrace.decide.rules import breaches, holds_back, lacks, speaks_for
from kvtrace.decide.selected import own_check, pair_of, quality_of, variant_of, way_back
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.decide.decision import CellPart, Reason
    from kvtrace.decide.evidence import Found

ORDER: Final = (Word.invalid, Word.roll_back, Word.collect_more, Word.retain, Word.promote)
"""The first that has a reason is the decision."""


def decide(found: Found) -> Decision:
    """Return the decision: an invalid cell, else a proven breach, else what lacks, else retain or promote."""
    cell = cell_of(found)
    reasons: list[Reason] = [
        *invalid_reasons(found, cell),
        *breaches(found),
        *lacks(found),
        *holds_back(found),
        *speaks_for(found),
    ]
    word = next(one for one in ORDER if one is Word.promote or any(reason.word is one for reason in reasons))
    reasons.sort(key=lambda reason: (reason.word is not word, ORDER.index(reason.word)))
    pair = pair_of(found)
    return Decision(
        word=word,
        baseline=found.baseline,
        candidate=found.candidate,
        policy_name=found.contract.name,
        policy_date=found.contract.date,
        policy_sha256=found.contract.sha256,
        confidence=found.contract.confidence,
        reasons=tuple(reasons),
        next=tuple(next_steps(word, found, reasons)),
        cell=cell,
        quality=tuple(_quality(found)),
        classes=() if pair is None else pair.classes,
        all=None if pair is None else pair.all,
        output_tokens=None if pair is None else pair.output_tokens,
        variants=tuple(variant_of(found, name) for name in (found.baseline, found.candidate)),
        way_back=way_back(found),
        not_measured=tuple(_not_measured(found, cell)),
        evidence=found.evidence,
        noise=_noise(found),
        runs=found.goodput.runs,
        currency=found.goodput.currency,
        clips=tuple(_clips(found)),
        harm=_harm(found),
    )


def _quality(found: Found) -> Iterator[Quality]:
    quality = quality_of(found)
    for segment in quality.segments if quality is not None else ():
        one = segment.difference
        yield Quality(
            segment=segment.segment,
            verdict=segment.verdict.value,
            loss=None if one is None else one.loss,
            low=None if one is None else one.low,
            high=None if one is None else one.high,
            margin=segment.margin,
            num_pairs=None if one is None else one.num_pairs,
            num_lost=None if one is None else one.num_lost,
            num_won=None if one is None else one.num_won,
            pairs_missing=segment.pairs_missing,
        )


def _noise(found: Found) -> Noise | None:
    """Return how much the baseline differs from itself, where answers were compared with it."""
    pair = None if found.quality is None or quality_of(found) is None else found.quality.noise_pair
    if pair is None:
        return None
    return Noise(**{name: getattr(pair, name) for name in Noise.model_fields})


def _clips(found: Found) -> Iterator[Clip]:
    """Yield each limit of the candidate's check that some head is held to."""
    check = own_check(found)
    for segment in () if check is None else check.segments:
        for one in segment.limits:
            if not one.num_heads:
                continue
            head = one.worst
            yield Clip(
                segment=segment.name,
                head=None
                if head is None
                else f"layer {head.layer} head {head.kv_head} {head.tensor.upper()}",
                value=None if head is None else head.value,
                **{name: getattr(one, name) for name in _OF_LIMIT},
            )


_OF_LIMIT: Final = ("limit", "bound", "is_minimum", "verdict", "num_heads", "num_breached")


def _harm(found: Found) -> HarmPart | None:
    one = None if found.harm is None else found.harm.of(found.candidate)
    if found.harm is None or one is None:
        return None
    return HarmPart(
        knowledge=found.harm.knowledge,
        harm=one.harm,
        low=one.harm_low,
        high=one.harm_high,
        drift=one.drift,
        misranking=one.distortion,
        flipped_frac=one.flipped_frac,
        num_requests=one.num_requests,
        num_probes=one.num_probes,
    )


def _not_measured(found: Found, cell: CellPart) -> Iterator[str]:
    """Yield what no evidence says, each with how it would be measured."""
    if quality_of(found) is None:
        yield "answers lost: kvtrace quality compare … --json, then --quality"
    if way_back(found) is None:
        yield "the way back: kvtrace capacity … --limit N --json, then --capacity"
    if found.check is None:
        yield "what clips: kvtrace check RUN --policy … --json, then --check"
    if _harm(found) is None:
        yield f"harm of {plain(found.candidate)}: kvtrace report TRACE --json with queries, then --report"
    variants = [variant_of(found, name) for name in (found.baseline, found.candidate)]
    if any(one.restarts is None for one in variants):
        yield "usage, waiting, preemptions: kvtrace serving … --metrics VARIANT=FILE"
    if all(one.cost_per_accepted is None for one in variants):
        yield "cost of an accepted answer: a table called cost in the policy"
    pair = pair_of(found)
    if pair is None or pair.output_tokens is None:
        yield "output lengths: the same request ids in both variants"
    if cell.not_said:
        yield f"held constant, by no manifest: {', '.join(cell.not_said)}"
    manifest = next(
        (table.manifests[found.candidate] for table in found.tables if found.candidate in table.manifests),
        None,
    )
    if cell.candidate in ("C2", "C3") and (manifest is None or manifest.calibration_approved_by is None):
        yield "who approved the calibration data: calibration_approved_by of the manifest"
