"""A decision for people: plain text on 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.decide.words import (
    NOT_MEASURED,
    SECTIONS,
    SIGNS,
    by_word,
    cell_line,
    clip_line,
    gain_line,
    harm_line,
    headline,
    policy_line,
    quality_line,
    reason_line,
    room_line,
    shown_gains,
    unused_lines,
)
from kvtrace.plain_text import plain, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.decide.decision import Decision


def decision_text(decision: Decision) -> str:
    """Return the decision as text."""
    return "\n".join(_lines(decision)) + "\n"


def _lines(one: Decision) -> Iterator[str]:
    yield from wrapped(
        f"{SIGNS[one.word]} {one.word.value.upper()}   {plain(one.candidate)} in place of "
        f"{plain(one.baseline)}",
        "",
    )
    for line in (headline(one), policy_line(one), cell_line(one)):
        yield from wrapped(line, "  ")
    for word, reasons in by_word(one):
        yield from ("", SECTIONS[word].upper())
        for reason in reasons:
            yield from wrapped(reason_line(reason), "  ", "    ")
    if one.next:
        yield from ("", "NEXT")
        for step in one.next:
            yield from wrapped(f"{step.id}: {step.text}", "  ", "    ")
    yield from ("", "ANSWERS LOST")
    yield from _listed([quality_line(each) for each in one.quality])
    yield from ("", "USEFUL GOODPUT   accepted a second")
    yield from _listed([gain_line(each) for each in shown_gains(one)])
    for line in unused_lines(one):
        yield from wrapped(f"not used: {line}", "  ", "    ")
    yield from ("", "ROOM, AND THE WAY BACK")
    yield from _listed([] if one.way_back is None else [room_line(one.way_back)])
    if one.harm is not None:
        yield from ("", "HARM", *wrapped(harm_line(one.harm), "  ", "    "))
    if one.clips:
        yield from ("", "WHAT CLIPS   limits on activations")
        yield from _listed([clip_line(each) for each in one.clips])
    yield from ("", "NOT MEASURED")
    for what in one.not_measured or ("nothing that this asks for",):
        yield from wrapped(plain(what, 600), "  ", "    ")


def _listed(lines: Sequence[str]) -> Iterator[str]:
    for line in lines or [NOT_MEASURED]:
        yield from wrapped(line, "  ", "    ")
