"""A decision as Markdown, to paste into a change request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.decide.words import (
    NOT_MEASURED,
    SECTIONS,
    SIGNS,
    by_word,
    cell_line,
    clip_line,
    harm_line,
    headline,
    points,
    reason_line,
    room_line,
    shown_gains,
    unused_lines,
)
from kvtrace.figures import number
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.decide.decision import Decision


def decision_markdown(decision: Decision) -> str:
    """Return the decision as Markdown, to paste into a change request."""
    return "\n".join(_markdown(decision)) + "\n"


def _markdown(one: Decision) -> Iterator[str]:
    title = f"{_cell(one.candidate)} in place of {_cell(one.baseline)}"
    yield f"## {SIGNS[one.word]} {one.word.value.capitalize()}: {title}"
    yield ""
    yield f"{_cell(headline(one))}."
    yield f"Policy {_cell(one.policy_name)} of {one.policy_date}, SHA-256 `{one.policy_sha256}`."
    yield f"{_cell(cell_line(one))}."
    for word, reasons in by_word(one):
        listed = [f"`{reason.id}` {_cell(reason_line(reason))}" for reason in reasons]
        yield from _section(SECTIONS[word].capitalize(), listed)
    yield from _section("Next", [f"`{step.id}` {_cell(step.text)}" for step in one.next])
    yield from _quality(one)
    yield from _goodput(one)
    yield from _section("Runs that were not used", [_cell(line) for line in unused_lines(one)])
    yield from (
        "",
        f"Room, and the way back: {NOT_MEASURED if one.way_back is None else _cell(room_line(one.way_back))}",
    )
    if one.harm is not None:
        yield from ("", f"Harm: {_cell(harm_line(one.harm))}")
    yield from _section("What clips", [_cell(clip_line(each)) for each in one.clips])
    yield from _section("Not measured", [_cell(what) for what in one.not_measured])
    yield from ("", "| evidence | file | SHA-256 |", "|---|---|---|")
    yield from (f"| {each.kind} | {_cell(each.file)} | `{each.sha256}` |" for each in one.evidence)


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", f"**{title}**", "")
        yield from (f"- {line}" for line in lines)


def _quality(one: Decision) -> Iterator[str]:
    if not one.quality:
        return
    yield from (
        "",
        "| answers | pairs | loss, points | interval | margin | verdict |",
        "|---|--:|--:|---|--:|---|",
    )
    if one.noise is not None:
        noise = one.noise
        yield (
            f"| {_cell(one.baseline)} twice: noise | {noise.num_pairs:,} | {points(noise.loss)} "
            f"| {points(noise.low)} to {points(noise.high)} | | |"
        )
    for each in one.quality:
        interval = "" if each.low is None else f"{points(each.low)} to {points(each.high)}"
        pairs = NOT_MEASURED if each.num_pairs is None else f"{each.num_pairs:,}"
        yield (
            f"| {_cell(each.segment)} | {pairs} | {points(each.loss)} | {interval} "
            f"| {100 * each.margin:.3g} | {each.verdict} |"
        )


def _goodput(one: Decision) -> Iterator[str]:
    if one.all is None:
        return
    yield from ("", "| class | baseline, accepted a second | change | interval |", "|---|--:|--:|---|")
    for gain in shown_gains(one):
        told = gain.difference
        interval = "" if told is None or told.low is None else f"{told.low:+.4g} to {told.high:+.4g}"
        yield (
            f"| {_cell(gain.name)} | {NOT_MEASURED if gain.baseline is None else number(gain.baseline)} "
            f"| {NOT_MEASURED if told is None else f'{told.mean:+.4g}'} | {interval} |"
        )


def _cell(text: str) -> str:
    """Return text that neither a table nor Markdown takes for its own."""
    shown = plain(text, 600).replace("\\", "\\\\")
    for mark in "|*_`<[":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
