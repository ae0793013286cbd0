"""A decision in words, the same in text, Markdown and page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvtrace.decide.decision import Word
from kvtrace.figures import count, number, percent, two_digits
from kvtrace.gate.check_text import decibel_or_percent
from kvtrace.gate.outcome import Verdict
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.decide.decision import Clip, Decision, HarmPart, Quality, Reason, ReasonId, WayBack
    from kvtrace.serving.report import Gain, RunGoodput

NOT_MEASURED: Final = "not measured"
SIGNS: Final = {
    Word.promote: "✓", Word.retain: "△", Word.collect_more: "◌", Word.roll_back: "✕", Word.invalid: "–",
}  # fmt: skip
SECTIONS: Final = {
    Word.invalid: "why the cell is invalid",
    Word.roll_back: "breached",
    Word.collect_more: "lacking",
    Word.retain: "no reason to change",
    Word.promote: "speaks for it",
}
HARM_OF: Final = {
    "residual": "of the residual stream",
    "projected": "of attention's output, squared and summed over layers",
    "heads": "of attention's output, squared, mean of query heads",
}
_MADE_OF: Final[Mapping[ReasonId, str]] = {
    "unsupported-cell": "Nothing to decide: {candidate} cannot be served here",
    "closed-loop": "Nothing to decide: load was not offered openly",
    "held-constant-differs": "Nothing to decide: more than one thing was changed",
    "silent-fallback": "Nothing to decide: a server ran another cache dtype",
    "same-cache-dtype": "Nothing to decide: both servers ran one cache dtype",
    "other-interval": "Nothing to decide: the interval is not the policy's",
    "answers-lost": "{candidate} loses more answers than the margin allows",
    "goodput-lost": "{candidate} gives fewer useful answers in time",
    "rejected": "{candidate} rejects more requests than allowed",
    "corrupted": "{candidate} computes logits that are NaN",
    "activations-breach": "{candidate} breaks the limits on activations",
    "no-gain": "Keep {baseline}: {candidate} gives no more useful answers",
    "no-way-back": "Keep {baseline}: from {candidate} there is no way back",
}


class Asked(NamedTuple):
    """One of the questions under a decision."""

    id: str
    question: str
    answer: str
    because: str


def headline(one: Decision) -> str:
    """Return the decision as a sentence of its first reason, without a full stop."""
    named = {"candidate": plain(one.candidate), "baseline": plain(one.baseline)}
    if one.word is Word.promote:
        return "{candidate} may go out: more useful answers, none lost beyond the margin".format(**named)
    if one.word is Word.collect_more:
        lacking = count(sum(reason.word is one.word for reason in one.reasons), "thing")
        return f"Too little to decide: {lacking} {'lacks' if lacking == '1 thing' else 'lack'}"
    return _MADE_OF[one.reasons[0].id].format(**named)


def asked(one: Decision) -> tuple[Asked, Asked, Asked]:
    """Return what people ask of a decision: answers, goodput, the way back."""
    return (
        Asked("answers", "Are answers lost?", *_answers(one)),
        Asked("goodput", "More useful answers?", *_goodput(one)),
        Asked("room", "Is there a way back?", *_room(one)),
    )


def _answers(one: Decision) -> tuple[str, str]:
    if not one.quality:
        return f"– {NOT_MEASURED}", "no answers were compared"
    verdicts = [each.verdict for each in one.quality]
    counted = ", ".join(f"{verdicts.count(name):,} {name}" for name in dict.fromkeys(verdicts))
    because = f"of {count(len(verdicts), 'segment')} {counted}"
    if "breached" in verdicts:
        return "Yes", because
    return ("Not beyond the margin" if set(verdicts) == {"within"} else "– cannot be told"), because


def _goodput(one: Decision) -> tuple[str, str]:
    told = None if one.all is None else one.all.difference
    if one.all is None or told is None:
        return f"– {NOT_MEASURED}", "no pair of runs can be used"
    ids = {reason.id for reason in one.reasons}
    because = gain_line(one.all)
    if "goodput-lost" in ids:
        return "No, fewer", because
    if "goodput-gained" in ids:
        return "Yes", because
    return ("– not shown" if told.low is None or "gain-not-told" in ids else "No"), because


def _room(one: Decision) -> tuple[str, str]:
    back = one.way_back
    if back is None:
        return f"– {NOT_MEASURED}", "no capacity was given"
    if back.fits:
        return "Yes", f"the limit of {back.limit:,} requests can stay"
    if back.limit_to_set < 1:
        return "No", "the baseline's cache holds not one such request"
    return (
        f"Yes, at {back.limit_to_set:,} requests",
        f"set --max-num-seqs {back.limit_to_set:,} first (now {back.limit:,})",
    )


def policy_line(one: Decision) -> str:
    """Return by which policy and intervals it was decided."""
    return f"by policy {plain(one.policy_name)} of {one.policy_date}, {100 * one.confidence:g} % intervals"


def cell_line(one: Decision) -> str:
    """Return which cell the candidate is, and what was held constant."""
    cell = one.cell
    name = (
        "its cell is not said by a manifest"
        if cell.candidate is None
        else f"cell {cell.candidate} against B0"
    )
    held = (
        f"{count(len(cell.held), 'field')} held constant" if cell.held else "nothing said to be held constant"
    )
    differs = "".join(f"; {field}: {before}, then {after}" for field, (before, after) in cell.differs.items())
    bundle = "; what is compared is a bundle" if cell.is_bundle else ""
    return f"{name}; {held}{differs}{bundle}"


def reason_line(reason: Reason) -> str:
    """Return a reason with what it is of, and how many still lack."""
    of = "" if reason.of is None else f"{plain(reason.of)}: "
    missing = "" if reason.missing is None else f" (still missing: {reason.missing:,})"
    return f"{of}{reason.text}{missing}"


def by_word(one: Decision) -> list[tuple[Word, list[Reason]]]:
    """Return the reasons under the decision that each stands for, those of the decision first."""
    words = list(dict.fromkeys(reason.word for reason in one.reasons))
    return [(word, [reason for reason in one.reasons if reason.word is word]) for word in words]


def quality_line(one: Quality) -> str:
    """Return a segment's loss in points of 100 pairs."""
    if one.num_pairs is None:
        return f"{plain(one.segment)}: {NOT_MEASURED}: {one.verdict}"
    return (
        f"{plain(one.segment)}: {points(one.loss)} points ({points(one.low)} to {points(one.high)}) of "
        f"{count(one.num_pairs, 'pair')}, margin {100 * one.margin:.3g}: {one.verdict}"
    )


def points(share: float | None) -> str:
    """Return a loss in points of 100 pairs, without the unit.

    >>> points(0.0193), points(-0.004), points(0.0), points(None)
    ('+1.93', '-0.4', '0', 'not measured')
    """
    return NOT_MEASURED if share is None else f"{100 * share:+.3g}" if share else "0"


def shown_gains(one: Decision) -> tuple[Gain, ...]:
    """Return the gains that are shown: one class alone is all of them."""
    if one.all is None:
        return ()
    return (*one.classes, one.all) if len(one.classes) > 1 else one.classes


def gain_line(gain: Gain) -> str:
    """Return a class's change."""
    one = gain.difference
    if one is None or gain.baseline is None:
        return f"{plain(gain.name)}: {NOT_MEASURED}"
    ends = "too few runs for an interval" if one.low is None else f"{one.low:+.4g} to {one.high:+.4g}"
    return f"{plain(gain.name)}: {number(gain.baseline)} → {number(gain.baseline + one.mean)} ({ends})"


def unused_lines(one: Decision) -> list[str]:
    """Return each run that has no goodput, and why."""
    return [
        f"{run_name(run)}: {'; '.join(plain(problem.text, 400) for problem in run.problems)}"
        for run in one.runs
        if run.problems
    ]


def run_name(run: RunGoodput) -> str:
    """Return a run's variant and number."""
    return f"{plain(run.variant)} run {run.repetition}"


def room_line(back: WayBack) -> str:
    """Return the tokens that both caches hold and the limit to set first."""
    held = [
        f"{name} holds {tokens:,} tokens"
        for name, tokens in (("the candidate", back.candidate_tokens), ("the baseline", back.baseline_tokens))
        if tokens is not None
    ]
    if back.fits:
        first = f"the limit of {back.limit:,} requests can stay"
    else:
        first = f"before going back set --max-num-seqs {back.limit_to_set:,} (now {back.limit:,})"
    return "; ".join([*held, f"{first}, by the {back.basis} case"])


def clip_line(one: Clip) -> str:
    """Return one limit in one segment, with how many heads pass it and the furthest."""
    head = "" if one.head is None or one.value is None else f"; {one.head}: {_value(one, one.value)}"
    told = f"{one.num_breached:,} of " if one.verdict is Verdict.breached else ""
    return (
        f"{plain(one.segment)}: {one.limit} {bound_of(one)}: {one.verdict.value} "
        f"({told}{count(one.num_heads, 'head')}{head})"
    )


def bound_of(one: Clip) -> str:
    """Return a limit's bound with its direction and unit."""
    return f"at {'least' if one.is_minimum else 'most'} {_value(one, one.bound)}"


def _value(one: Clip, value: float) -> str:
    return decibel_or_percent(one.limit, value)


def harm_line(one: HarmPart) -> str:
    """Return how much harm there is, what fresh scales would remove of it, and what that rests on."""

    def figure(value: float | None) -> str:
        return percent(value) if one.knowledge == "residual" or not value else two_digits(value)

    ends = "" if one.low is None else f" ({figure(one.low)} to {figure(one.high)})"
    parts = [f"harm {figure(one.harm)}{ends} {HARM_OF[one.knowledge]}"]
    if one.drift is not None and one.misranking is not None:
        parts.append(f"drift {figure(one.drift)}, misranking {figure(one.misranking)}")
    if one.flipped_frac is not None:
        parts.append(f"another key has the largest logit at {percent(one.flipped_frac)} of queries")
    parts.append(f"{count(one.num_requests, 'request')}, {one.num_probes:,} queries")
    return "; ".join(parts)
