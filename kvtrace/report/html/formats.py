"""The section on candidates: a row for each, with what the answer says of it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.figures import count, decibel, percent, times
from kvtrace.plain_text import plain
from kvtrace.report.html.answer import mark
from kvtrace.report.html.heads import range_used
from kvtrace.report.shown import left_out, shown_candidates, shown_choices
from kvtrace.report.statements import cache_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.answer.model import Answer
    from kvtrace.report.html.tables import ChartData
    from kvtrace.report.sections import CandidateSummary, Report

_NAME: Final = 200
_COMMAND: Final = 20_000


def formats_parts(report: Report, data: ChartData) -> dict[str, Any]:
    """Return the template's `formats`: the scales of the answer first, BF16 last."""
    order = {one.candidate: place for place, one in enumerate(report.answer.compared)}
    listed = sorted(
        shown_candidates(report), key=lambda one: (one.kind == "bf16", order.get(one.candidate, len(order)))
    )
    return {
        "finding": _finding(report.answer),
        "rows": [_row(report.answer, data, one) for one in listed],
        "left_out": left_out(report),
        "commands": [
            {"name": plain(one.candidate, _NAME), "command": plain(one.command, _COMMAND)}
            for one in shown_choices(report)
            if one.command
        ],
        "floor": _floor(report),
    }


def _finding(answer: Answer) -> str:
    sound = sum(one.state == "sound" for one in answer.compared)
    if len(answer.compared) == 1:
        (one,) = answer.compared
        return plain(f"{one.candidate} {one.text}", _NAME)
    if not answer.compared:
        return "Only what an engine does by default was judged"
    return f"{sound} of {count(len(answer.compared), 'set')} of scales {'is' if sound == 1 else 'are'} sound"


def _row(answer: Answer, data: ChartData, candidate: CandidateSummary) -> dict[str, Any]:
    judged = next((one for one in answer.compared if one.candidate == candidate.candidate), None)
    row: dict[str, Any] = {
        "name": plain(candidate.candidate, _NAME),
        "place": data.candidates.index(candidate.candidate)
        if candidate.candidate in data.candidates
        else None,
        "mark": mark(judged.state) if judged else None,
        "note": plain(judged.text, 400) if judged else "",
        "cells": None,
        "bytes": cache_bytes(candidate) or "–",
    }
    if candidate.kind == "bf16":
        return row | {"note": "not quantized: nothing is lost"}
    if candidate.status == "invalid":
        note = row["note"] or f"cannot be used: {plain(candidate.reason or '', 400)}"
        return row | {"note": note, "mark": mark("not measured") | {"word": "invalid"}}
    return row | {"cells": list(_cells(data, candidate))}


def _cells(data: ChartData, candidate: CandidateSummary) -> Iterator[str]:
    totals = {total.tensor: total.measured for total in candidate.tensors}
    used = range_used(data)[data.candidates.index(candidate.candidate)]
    for tensor in ("k", "v"):
        yield percent(totals[tensor].clipped_frac if tensor in totals else None)
    for tensor in ("k", "v"):
        yield decibel(totals[tensor].sqnr_db if tensor in totals else None)
    for place in range(len(used)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nothing but NaN: not measured
            most = np.nanmax(used[place], initial=-np.inf)
        yield times(float(most) if np.isfinite(most) else None)


def _floor(report: Report) -> list[str]:
    floors = {
        (one.format, one.engine): one.rounding_floor_db
        for one in report.candidates
        if one.status == "valid" and one.rounding_floor_db is not None
    }
    return [
        f"Rounding alone leaves about {decibel(floor)} dB in {fp8_format} as {engine} writes it."
        for (fp8_format, engine), floor in floors.items()
    ]
