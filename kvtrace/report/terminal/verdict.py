"""The verdict, the findings and the heat map of the text report."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.report.answer import decisive_finding, hypothetical_statement
from kvtrace.report.wording import WIDTH, columns, cut, ended, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.diagnose import HeadLoss
    from kvtrace.findings.finding import Finding
    from kvtrace.report.sections import Report

_NAME: Final = 24
_MESSAGE: Final = 2_000
_MOST_FOUND: Final = 12
_MOST_ROWS: Final = 8
"""Rows of the heat map for K, and for V: more heads are shown by the worst of a few."""
_LABEL: Final = 9
_STATUS: Final = {
    "fault": "FAULT.",
    "suspect": "SUSPECT.",
    "cannot tell": "CANNOT TELL.",
    "sound": "SOUND.",
}
_SHADES: Final = (
    (0.05, "#", "over 5 %"),
    (0.005, "x", "over 0.5 %: it matters"),
    (0.0006, "+", "more than rounding"),
    (0.0, "-", "less"),
)


def verdict_lines(report: Report) -> Iterator[str]:
    """Yield the headline, what to do, and which scales are sound."""
    verdict = report.verdict
    yield from paragraph(f"{_STATUS[verdict.status]} {ended(plain(verdict.headline, _MESSAGE))}")
    first = decisive_finding(report)
    if first is not None:
        yield from paragraph(plain(first.action, _MESSAGE), "    ", "  → ")
        yield from _command(first, "    ")
        hypothetical = hypothetical_statement(report, first)
        if hypothetical:
            yield from paragraph(hypothetical)
    others = [one for one in report.findings if one.severity != "note" and one is not first]
    if others:
        yield from paragraph(f"Also found: {_by_id(others)}.")
    if verdict.sound and verdict.status != "sound":
        yield from paragraph(
            f"Nothing above a note under {', '.join(plain(n, _NAME) for n in verdict.sound)}."
        )


def finding_lines(report: Report) -> Iterator[str]:
    """Yield every finding above a note, the notes that are answers, and the ids of the other notes."""
    told = [one for one in report.findings if one.severity != "note" or one.id == "coverage"]
    if report.verdict.status == "sound":
        told += [one for one in report.findings if one.id in ("not-the-scales", "rounding-floor")]
    stated = None if report.verdict.status == "sound" else decisive_finding(report)
    commands: set[str] = set()
    for one in told[:_MOST_FOUND]:
        yield from _finding(one, commands, is_stated=one is stated)
    if len(told) > _MOST_FOUND:
        yield f"  and {len(told) - _MOST_FOUND} more: --format json has all"
    rest = [one for one in report.findings if one not in told]
    if rest:
        yield from paragraph(f"Notes: {_by_id(rest)}.")


def heat_map_lines(report: Report) -> Iterator[str]:
    """Yield layers × heads, a character a head: the share of its energy that clipping costs."""
    if not report.losses or report.losses_under is None:
        return
    shown = [shade for shade in _SHADES if any(_shade(one.clip_error) == shade[1] for one in report.losses)]
    yield ""
    if not shown:
        yield from paragraph(
            f"Heat map: nothing is clipped under {cut(report.losses_under, 40)}, in any layer or head."
        )
        return
    yield f"  CLIPPING UNDER {cut(report.losses_under, 30)}   layers across, heads down"
    layers = sorted({one.layer for one in report.losses})
    per_line = WIDTH - _LABEL - 2
    for first in range(0, len(layers), per_line):
        part = layers[first : first + per_line]
        yield f"  {'layer':<{_LABEL}}{_ruler(part)}".rstrip()
        for tensor in ("k", "v"):
            yield from _rows(report.losses, tensor, part)
    legend = ", ".join(f"{char} {meaning}" for _, char, meaning in reversed(shown))
    yield from paragraph(f"Energy lost by clipping: . none, {legend}.")


def _finding(one: Finding, commands: set[str], *, is_stated: bool) -> Iterator[str]:
    """Yield one finding; what the verdict has said and a command before are not repeated."""
    about = f" under {cut(one.candidate, _NAME)}" if one.candidate else ""
    sure = "" if one.confidence == "certain" else f", confidence {one.confidence}"
    rests = f", from {one.num_requests:,} requests" if one.num_requests is not None else ""
    cause = f", explained by {', '.join(one.explained_by)}" if one.explained_by else ""
    yield from paragraph(f"{one.id}{about}{sure}{rests}{cause}", " " * 10, f"  {one.severity.upper():<8}")
    if is_stated:
        yield from paragraph("the verdict above", " " * 10)
    else:
        yield from paragraph(plain(one.message, _MESSAGE), " " * 10)
        yield from paragraph(plain(one.action, _MESSAGE), " " * 12, " " * 10 + "→ ")
        if one.command in commands:
            yield " " * 12 + "the same command as above"
        else:
            yield from _command(one, " " * 12)
    commands.add(one.command or "")


def _command(one: Finding, indent: str) -> Iterator[str]:
    """Yield the command in lines that can be copied: broken between words alone, however long these are."""
    line = ""
    for word in _words(one.command or ""):
        if line and columns(f"{indent}{line} {word} \\") > WIDTH:
            yield f"{indent}{line} \\"
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield indent + line


def _words(command: str) -> list[str]:
    """Return the words with their quotes; an option and its value stay together."""
    words: list[str] = []
    for word in shlex.split(command):
        if words and words[-1].startswith("-") and not word.startswith("-") and " " not in words[-1]:
            words[-1] += f" {shlex.quote(word)}"
        else:
            words.append(shlex.quote(word))
    return words


def _by_id(findings: Sequence[Finding]) -> str:
    """Return "k-clips (shipped); coverage": each id with the scales it is about."""
    listed = []
    for name in dict.fromkeys(one.id for one in findings):
        about = dict.fromkeys(cut(o.candidate, _NAME) for o in findings if o.id == name and o.candidate)
        listed.append(f"{name} ({', '.join(about)})" if about else name)
    return "; ".join(listed)


def _ruler(layers: Sequence[int]) -> str:
    """Return layer numbers above their columns, every fifth."""
    line = ""
    for column, layer in enumerate(layers):
        if layer % 5 == 0 and column >= len(line):
            line = line.ljust(column) + str(layer)
            line += " "
    return line[: len(layers) + 2].rstrip()


def _rows(losses: Sequence[HeadLoss], tensor: str, layers: Sequence[int]) -> Iterator[str]:
    found = {(one.layer, one.kv_head): one.clip_error for one in losses if one.tensor == tensor}
    heads = sorted({head for _, head in found})
    size = -(-len(heads) // _MOST_ROWS)
    for first in range(0, len(heads), max(size, 1)):
        group = heads[first : first + size]
        label = f"{tensor.upper()} {group[0]}" + (f"–{group[-1]}" if len(group) > 1 else "")
        cells = "".join(
            _shade(max((found[layer, head] for head in group if (layer, head) in found), default=None))
            for layer in layers
        )
        yield f"  {label:<{_LABEL}}{cells}".rstrip()


def _shade(clip_error: float | None) -> str:
    if clip_error is None:
        return " "
    return next((char for least, char, _ in _SHADES if clip_error > least), ".")
