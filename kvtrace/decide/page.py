"""A decision as one HTML page: the word, answers lost, useful goodput, the way back, what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.decide.decision import Word
from kvtrace.decide.pictures import OUTCOMES, forest, outcome_bars, room_bars
from kvtrace.decide.words import (
    NOT_MEASURED,
    SECTIONS,
    SIGNS,
    asked,
    bound_of,
    by_word,
    cell_line,
    clip_line,
    gain_line,
    harm_line,
    headline,
    policy_line,
    reason_line,
    room_line,
    run_name,
    shown_gains,
)
from kvtrace.figures import count
from kvtrace.gate.outcome import Verdict
from kvtrace.plain_text import plain
from kvtrace.report.html.answer import mark
from kvtrace.report.html.render import rendered_page
from kvtrace.serving.text import LATENCIES, percentile_text, span_line, tool_line
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.decide.decision import Clip, Decision
    from kvtrace.report.answer.model import State
    from kvtrace.serving.report import RunGoodput

_NAME: Final = 200
_TEXT: Final = 2_000
_REASONS: Final = 4
"""Shown on the first screen; all stand below."""
_LEVELS: Final = {
    Word.promote: "sound", Word.retain: "warn", Word.collect_more: "none", Word.roll_back: "fault",
    Word.invalid: "none",
}  # fmt: skip
_STATES: Final[dict[Verdict, State]] = {
    Verdict.breached: "fault",
    Verdict.within: "sound",
    Verdict.not_enough: "too few",
}


def decision_html(one: Decision) -> str:
    """Return the page; it needs no network, and of scripts only the one that copies commands."""
    return rendered_page(
        "decision.html.j2",
        names=f"{plain(one.candidate, _NAME)} in place of {plain(one.baseline, _NAME)}",
        subtitle=policy_line(one),
        navigation=_navigation(one),
        links={"answers": "answers-lost", "goodput": "useful-goodput", "room": "room"},
        answer=_answer(one),
        reasons=[
            {"title": SECTIONS[word], "lines": [_line(reason_line(reason)) for reason in reasons]}
            for word, reasons in by_word(one)
        ],
        forest=forest(one),
        outcomes=[name for name, _ in OUTCOMES],
        bars=outcome_bars(one),
        gains=[plain(gain_line(gain), _TEXT) for gain in shown_gains(one)],
        latencies=list(_latencies(one)),
        tools=[(run_name(run), tool_line(run.tool)) for run in one.runs if run.tool is not None],
        costs=list(_costs(one)),
        room=None if one.way_back is None else _line(room_line(one.way_back)),
        room_bars=room_bars(one.way_back),
        engines=list(_engines(one)),
        harm=None if one.harm is None else _line(harm_line(one.harm)),
        clips=[_clip(each) for each in one.clips],
        clips_found=_clips_found(one),
        cell=_line(cell_line(one)),
        held=[(plain(name, _NAME), plain(value, _NAME)) for name, value in one.cell.held.items()],
        differs=[
            [plain(value, _NAME) for value in (name, before, after)]
            for name, (before, after) in one.cell.differs.items()
        ],
        not_said=", ".join(one.cell.not_said),
        runs=[_run(run) for run in one.runs],
        evidence=[(each.kind, plain(each.file, _NAME), each.sha256) for each in one.evidence],
        not_measured=[_split(what) for what in one.not_measured],
        version=__version__,
    )


def _answer(one: Decision) -> dict[str, Any]:
    own = [reason for reason in one.reasons if reason.word is one.word]
    rest = len(own) - _REASONS
    return {
        "mark": {"sign": SIGNS[one.word], "word": one.word.value, "level": _LEVELS[one.word]},
        "headline": headline(one),
        "why": [_line(reason_line(reason)) for reason in own[:_REASONS]],
        "more": f"and {rest:,} more, below" if rest > 0 else "",
        "next": [(step.id, _line(step.text)) for step in one.next],
        "cell": _line(cell_line(one)),
        "asked": asked(one),
    }


def _navigation(one: Decision) -> list[tuple[str, list[dict[str, Any]]]]:
    def entry(name: str, title: str, marked: dict[str, str], *, is_there: bool = True) -> dict[str, Any]:
        return {"id": name, "title": title, "mark": marked, "needs_js": False, "is_there": is_there}

    verdicts = {each.verdict for each in one.quality}
    answers: State = "fault" if "breached" in verdicts else "sound" if verdicts == {"within"} else "too few"
    ids = {reason.id for reason in one.reasons}
    goodput: State = (
        "fault"
        if "goodput-lost" in ids
        else "sound"
        if "goodput-gained" in ids
        else "warning"
        if "no-gain" in ids
        else "too few"
    )
    back = one.way_back
    room: State = "sound" if back is not None and back.fits else "warning"
    groups = (
        ("", [entry("answer", "Decision", _answer(one)["mark"])]),
        (
            "May it go out?",
            [
                entry("answers-lost", "Answers lost", mark(answers if one.quality else "not measured")),
                entry("useful-goodput", "Useful goodput", mark(goodput)),
                entry("room", "Room, and the way back", mark("not measured" if back is None else room)),
            ],
        ),
        (
            "Is it the scales?",
            [
                entry("harm", "Harm", mark("not measured"), is_there=one.harm is not None),
                entry("clips", "What clips", mark(_clips_state(one)), is_there=bool(one.clips)),
            ],
        ),
        (
            "What it rests on",
            [
                entry("evidence", "Evidence", mark("sound" if not one.cell.not_said else "warning")),
                entry("not-measured", "Not measured", mark("not measured")),
            ],
        ),
    )
    return [(title, [each for each in listed if each["is_there"]]) for title, listed in groups]


def _clips_state(one: Decision) -> State:
    verdicts = {each.verdict for each in one.clips}
    return next(
        (_STATES[each] for each in _STATES if each in verdicts and each is not Verdict.within), "sound"
    )


def _clips_found(one: Decision) -> str:
    breached = [each for each in one.clips if each.verdict is Verdict.breached]
    if not breached:
        return f"None of {count(len(one.clips), 'limit')} is breached"
    return clip_line(max(breached, key=lambda each: each.num_breached / each.num_heads))


def _clip(one: Clip) -> dict[str, Any]:
    return {
        "segment": plain(one.segment, _NAME),
        "limit": one.limit,
        "bound": bound_of(one),
        "mark": mark(_STATES[one.verdict]),
        "verdict": one.verdict.value,
        "heads": f"{one.num_breached:,} of {one.num_heads:,}",
        "head": one.head or "–",
    }


def _latencies(one: Decision) -> Iterator[list[str]]:
    """Yield run, class, what it is of, and its percentiles in ms."""
    for run in one.runs:
        for part in run.classes:
            for kind, title in LATENCIES.items():
                found = getattr(part.latencies, kind)
                if found:
                    told = [
                        "too few" if each.value_ms is None else percentile_text(each).partition(" ")[2]
                        for each in found
                    ]
                    clock = " from sending" if run.latency_clock == "dispatch" else ""
                    yield [run_name(run), plain(part.name, _NAME), f"{title}{clock}", *told]


def _costs(one: Decision) -> Iterator[tuple[str, str]]:
    for variant in one.variants:
        found = variant.cost_per_accepted
        if found is not None:
            yield plain(variant.variant, _NAME), f"{found.mean:.4g} {plain(one.currency or '', 8)}"


def _engines(one: Decision) -> Iterator[tuple[str, str]]:
    for variant in one.variants:
        name = plain(variant.variant, _NAME)
        if variant.restarts is None:
            yield name, f"/metrics: {NOT_MEASURED}"
        when = "in the runs' intervals" if variant.is_cut else "over all scrapes"
        for span in variant.engine:
            yield f"{name}, {when}", span_line(span)


def _run(run: RunGoodput) -> list[str]:
    rate = "" if run.rate is None else f", {run.rate:g} a second"
    said = [each.text for each in run.problems] + [each.text for each in run.notes]
    return [
        run_name(run),
        f"{run.format}, {run.load} load{rate}",
        "no" if run.problems else "yes",
        "; ".join(plain(text, 400) for text in said),
    ]


def _split(what: str) -> tuple[str, str]:
    name, _, how = what.partition(": ")
    return plain(name, _TEXT), plain(how, _TEXT)


def _line(text: str) -> str:
    return plain(text, _TEXT)
