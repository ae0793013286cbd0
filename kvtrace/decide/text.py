"""A decision for people: plain text on 80 columns, and Markdown for a change request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.decide.decision import Word
from kvtrace.figures import count, number, percent
from kvtrace.plain_text import plain, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.decide.decision import Decision, Quality, Reason, WayBack
    from kvtrace.serving.report import Gain

_NOT_MEASURED: Final = "not measured"
_SIGNS: Final = {
    Word.promote: "✓", Word.retain: "△", Word.collect_more: "◌", Word.roll_back: "✕", Word.invalid: "–",
}  # fmt: skip
_SECTIONS: Final = {
    Word.invalid: "why the cell is invalid",
    Word.roll_back: "breached",
    Word.collect_more: "lacking",
    Word.retain: "no reason to change",
    Word.promote: "speaks for it",
}


def decision_text(decision: Decision) -> str:
    """Return the decision as text."""
    return "\n".join(_lines(decision)) + "\n"


def _lines(one: Decision) -> Iterator[str]:
    yield from wrapped(
        f"{_SIGNS[one.word]} {one.word.value.upper()}   {plain(one.candidate)} in place of "
        f"{plain(one.baseline)}",
        "",
    )
    yield from wrapped(
        f"by policy {plain(one.policy_name)} of {one.policy_date}, {100 * one.confidence:g} % intervals", "  "
    )
    yield from wrapped(cell_line(one), "  ")
    for word, reasons in _by_word(one):
        yield from ("", _SECTIONS[word].upper())
        for reason in reasons:
            yield from wrapped(reason_line(reason), "  ", "    ")
    if one.next:
        yield from ("", "NEXT")
        for step in one.next:
            yield from wrapped(f"{step.id}: {step.text}", "  ", "    ")
    yield from ("", "ANSWERS LOST")
    yield from _listed([quality_line(each) for each in one.quality])
    yield from ("", "USEFUL GOODPUT   accepted a second")
    gains = () if one.all is None else (*one.classes, one.all) if len(one.classes) > 1 else one.classes
    yield from _listed([gain_line(each) for each in gains])
    yield from ("", "ROOM, AND THE WAY BACK")
    yield from _listed([] if one.way_back is None else [room_line(one.way_back)])
    yield from ("", "NOT MEASURED")
    for what in one.not_measured or ("nothing that this asks for",):
        yield from wrapped(plain(what, 600), "  ", "    ")


def decision_markdown(decision: Decision) -> str:
    """Return the decision as Markdown, to paste into a change request."""
    return "\n".join(_markdown(decision)) + "\n"


def _markdown(one: Decision) -> Iterator[str]:
    title = f"{_cell(one.candidate)} in place of {_cell(one.baseline)}"
    yield f"## {_SIGNS[one.word]} {one.word.value.capitalize()}: {title}"
    yield ""
    yield f"Policy {_cell(one.policy_name)} of {one.policy_date}, SHA-256 `{one.policy_sha256}`."
    yield cell_line(one)
    for word, reasons in _by_word(one):
        yield from ("", f"**{_SECTIONS[word].capitalize()}**", "")
        yield from (f"- `{reason.id}` {_cell(reason_line(reason))}" for reason in reasons)
    if one.next:
        yield from ("", "**Next**", "")
        yield from (f"- `{step.id}` {_cell(step.text)}" for step in one.next)
    if one.quality:
        yield from (
            "",
            "| answers | pairs | loss | interval | margin | verdict |",
            "|---|--:|--:|---|--:|---|",
        )
        for each in one.quality:
            interval = "" if each.low is None else f"{_points(each.low)} to {_points(each.high)}"
            pairs = _NOT_MEASURED if each.num_pairs is None else f"{each.num_pairs:,}"
            yield (
                f"| {_cell(each.segment)} | {pairs} | {_points(each.loss)} | {interval} "
                f"| {percent(each.margin)} | {each.verdict} |"
            )
    if one.all is not None:
        yield from ("", "| class | baseline, accepted a second | change | interval |", "|---|--:|--:|---|")
        for gain in (*one.classes, one.all):
            told = gain.difference
            interval = "" if told is None or told.low is None else f"{told.low:+.4g} to {told.high:+.4g}"
            yield (
                f"| {_cell(gain.name)} | {_NOT_MEASURED if gain.baseline is None else number(gain.baseline)} "
                f"| {_NOT_MEASURED if told is None else f'{told.mean:+.4g}'} | {interval} |"
            )
    yield from (
        "",
        f"Room, and the way back: {_NOT_MEASURED if one.way_back is None else room_line(one.way_back)}",
    )
    if one.not_measured:
        yield from ("", "**Not measured**", "")
        yield from (f"- {_cell(what)}" for what in one.not_measured)
    yield from ("", "| evidence | file | SHA-256 |", "|---|---|---|")
    yield from (f"| {each.kind} | {_cell(each.file)} | `{each.sha256}` |" for each in one.evidence)


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


def quality_line(one: Quality) -> str:
    """Return a segment's loss in points of 100 pairs."""
    if one.num_pairs is None:
        return f"{plain(one.segment)}: {_NOT_MEASURED}: {one.verdict}"
    return (
        f"{plain(one.segment)}: {_points(one.loss)} ({_points(one.low)} to {_points(one.high)}) of "
        f"{count(one.num_pairs, 'pair')}, margin {percent(one.margin)}: {one.verdict}"
    )


def gain_line(gain: Gain) -> str:
    """Return a class's change."""
    one = gain.difference
    if one is None or gain.baseline is None:
        return f"{plain(gain.name)}: {_NOT_MEASURED}"
    ends = "too few runs for an interval" if one.low is None else f"{one.low:+.4g} to {one.high:+.4g}"
    return f"{plain(gain.name)}: {number(gain.baseline)} → {number(gain.baseline + one.mean)} ({ends})"


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


def _by_word(one: Decision) -> list[tuple[Word, list[Reason]]]:
    words = list(dict.fromkeys(reason.word for reason in one.reasons))
    return [(word, [reason for reason in one.reasons if reason.word is word]) for word in words]


def _listed(lines: list[str]) -> Iterator[str]:
    for line in lines or [_NOT_MEASURED]:
        yield from wrapped(line, "  ", "    ")


def _points(share: float | None) -> str:
    return _NOT_MEASURED if share is None else f"{100 * share:+.3g} %" if share else "0"


def _cell(text: str) -> str:
    """Return text that neither a table nor Markdown takes for its own."""
    shown = plain(text, 600).replace("\\", "\\\\")
    for mark in "|*_`<[":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
