"""Harm: against bytes, on the ruler, the two diagnoses, layers and parts of the traffic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times
from kvtrace.report.harm.words import (
    LACKING,
    causes_sentence,
    diagnoses_sentence,
    harm_figure,
    layers_sentence,
    strata_sentences,
)
from kvtrace.report.statements import cache_bytes
from kvtrace.report.wording import padded, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.harm.model import CandidateHarm, Harm
    from kvtrace.report.sections import CandidateSummary, Report

_NAME: Final = 20
_COLUMNS: Final = 46
LOW: Final = 1e-4
HIGH: Final = 1.0
"""The ends of the ruler, always the same."""


def harm_lines(harm: Harm, report: Report) -> Iterator[str]:
    """Yield the harm of the answer's scales beside that of fresh ones, and what it is made of."""
    own = harm.of(report.answer.candidate)
    if own is not None:
        fresh = [one for one in harm.candidates if one.kind == "fresh" and one is not own]
        if harm.knowledge == "residual":
            yield from _ruler([own, *fresh])
        for sentence in (
            diagnoses_sentence(harm, own),
            layers_sentence(harm, own),
            causes_sentence(own),
            *strata_sentences(harm),
        ):
            if sentence:
                yield from paragraph(sentence)
    if (lacking := LACKING[harm.knowledge]) is not None:
        yield from paragraph(lacking)


def front_table(harm: Harm, candidates: list[CandidateSummary]) -> Iterator[str]:
    """Yield a line per candidate, the most bytes first; `*` marks those that none beats in both."""
    known = {one.candidate: one for one in candidates}
    rows = sorted(
        (one for one in harm.candidates if one.candidate in known),
        key=lambda one: (-(known[one.candidate].bytes_per_token or 0), one.harm or 0, one.candidate),
    )
    yield f"  {'by bytes a token':<{_NAME + 2}}{'harm':>12}{'of fresh scales':>18}{'bytes a token':>16}"
    for one in rows:
        star = "*" if one.candidate in harm.front else " "
        size = cache_bytes(known[one.candidate]) or "–"
        ratio = times(one.ratio) if one.harm else "–"
        figure = harm_figure(harm, one.harm)
        yield f"  {padded(one.candidate, _NAME)} {star}{figure:>12}{ratio:>18}{size:>16}"
    yield "  * nothing is better in both"


def _ruler(marks: list[CandidateHarm]) -> Iterator[str]:
    """Yield a line per mark. Shares of the residual stream alone stand on a ruler that never changes."""
    scale = [" "] * (_COLUMNS + 6)
    for label, at in (("0.01 %", 1e-4), ("0.1 %", 1e-3), ("1 %", 1e-2), ("10 %", 0.1), ("100 %", 1.0)):
        place = _column(at)
        scale[place : place + len(label)] = label
    yield f"  {'':<{_NAME}} {''.join(scale)}".rstrip()
    for one in marks:
        place = _column(one.harm or 0.0)
        yield f"  {padded(one.candidate, _NAME)} {' ' * place}● {percent(one.harm)}"


def _column(value: float) -> int:
    share = math.log(min(max(value, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(share * (_COLUMNS - 1))
