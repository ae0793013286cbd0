"""Pictures of a decision as numbers: places in per cent across a cell, so that a page needs no script."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

from kvtrace.decide.words import NOT_MEASURED, points
from kvtrace.figures import percent, span
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.decide.decision import Decision, WayBack
    from kvtrace.serving.report import ClassGoodput, RunGoodput

_NAME: Final = 200
_EDGE: Final = 3.0
_MOST_TICKS: Final = 6
_LABELLED: Final = 0.15
"""Share of a bar from which its number fits in."""
OUTCOMES: Final = (
    ("accepted", ("accepted",)),
    ("late", ("late",)),
    ("wrong", ("wrong",)),
    ("unjudged", ("unjudged",)),
    ("rejected", ("rejected",)),
    ("failed or unfinished", ("failed", "unfinished")),
)
"""Of a planned request, in the order that they are drawn."""
_VERDICTS: Final = {"breached": ("✕", "fault"), "within": ("✓", "sound"), "too few to tell": ("◌", "none")}


def forest(one: Decision) -> dict[str, Any] | None:
    """Return the loss of each segment beside the noise, on one axis; None: no answers were compared."""
    if not one.quality:
        return None
    listed = [each for each in (one.noise, *one.quality) if each is not None and each.low is not None]
    ends = [value for each in listed for value in (each.low, each.high) if value is not None]
    margins = [each.margin for each in one.quality]
    least, most = min(0.0, *ends, *(-value for value in margins)), max(*margins, *ends, 0.0)

    def across(share: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (share - least) / ((most - least) or 1), 2)

    rows = [
        {
            "name": plain(each.segment, _NAME),
            "pairs": NOT_MEASURED if each.num_pairs is None else f"{each.num_pairs:,}",
            "counts": (_whole(each.num_lost), _whole(each.num_won)),
            "margin": across(each.margin),
            "verdict": each.verdict,
            "missing": "" if each.pairs_missing is None else f": {each.pairs_missing:,} more pairs",
            **_level(each.verdict),
            **_mark(each.loss, each.low, each.high, across),
        }
        for each in one.quality
    ]
    if one.noise is not None:
        noise = one.noise
        rows.insert(
            0,
            {
                "name": f"{plain(one.baseline, _NAME)} twice: the noise",
                "pairs": f"{noise.num_pairs:,}",
                "counts": (_whole(noise.num_lost), _whole(noise.num_won)),
                "margin": None,
                "verdict": "",
                "missing": "",
                "sign": "",
                "level": "none",
                **_mark(noise.loss, noise.low, noise.high, across),
            },
        )
    return {
        "rows": rows,
        "zero": across(0.0),
        "ticks": [{"x": across(value), "text": _tick(value)} for value in _ticks(least, most)],
    }


def _mark(loss: float | None, low: float | None, high: float | None, across: Any) -> dict[str, Any]:
    if loss is None or low is None or high is None:
        return {"x": None, "loss": NOT_MEASURED, "interval": ""}
    return {
        "x": across(loss),
        "low": across(low),
        "high": across(high),
        "loss": points(loss),
        "interval": f"{points(low)} to {points(high)}",
    }


def _level(verdict: str) -> dict[str, str]:
    sign, level = _VERDICTS.get(verdict, ("–", "none"))
    return {"sign": sign, "level": level}


def _whole(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _tick(share: float) -> str:
    return f"{100 * share:+.3g}" if share else "0"


def _ticks(least: float, most: float) -> list[float]:
    """Return round places of an axis, at most six.

    >>> _ticks(-0.01, 0.052)
    [0.0, 0.02, 0.04]
    """
    span = (most - least) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
    step = next(power * by for by in (1, 2, 5, 10) if span / (power * by) <= _MOST_TICKS)
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def outcome_bars(one: Decision) -> list[dict[str, Any]]:
    """Return for each class and variant what became of its planned requests, over the runs that count."""
    names = [each.name for each in one.variants[0].classes]
    shown = [*names, "all"] if len(names) > 1 else names
    rows = []
    for name in shown:
        for variant in one.variants:
            used = [run for run in one.runs if run.variant == variant.variant and not run.problems]
            parts = [_of(run, name) for run in used]
            offered = sum(part.offered for part in parts)
            rows.append(
                {
                    "name": plain(name, _NAME),
                    "variant": plain(variant.variant, _NAME),
                    "is_first": variant is one.variants[0],
                    "offered": f"{offered:,}",
                    "rate": _rate(parts),
                    "share": _share(parts, offered),
                    "segments": _segments(parts, offered),
                    "said": ", ".join(
                        f"{many:,} {kind}"
                        for kind, fields in OUTCOMES
                        if (many := sum(_sum(parts, field) for field in fields))
                    )
                    or NOT_MEASURED,
                }
            )
    return rows


def _rate(parts: Sequence[ClassGoodput]) -> str:
    """Return the mean of the runs; a range where answers are not judged."""
    told = [(one.goodput, one.goodput_most) for one in parts if one.goodput is not None]
    if not told:
        return NOT_MEASURED
    least, most = (mean(ends[place] or 0.0 for ends in told) for place in (0, 1))
    return span(least, most)


def _share(parts: Sequence[ClassGoodput], offered: int) -> str:
    if not offered:
        return NOT_MEASURED
    accepted, unjudged = _sum(parts, "accepted"), _sum(parts, "unjudged_in_time")
    least = percent(accepted / offered)
    return f"{least} to {percent((accepted + unjudged) / offered)}" if unjudged else least


def _of(run: RunGoodput, name: str) -> ClassGoodput:
    return run.all if name == "all" else next(one for one in run.classes if one.name == name)


def _sum(parts: Sequence[ClassGoodput], field: str) -> int:
    return sum(int(getattr(part, field)) for part in parts)


def _segments(parts: Sequence[ClassGoodput], offered: int) -> list[dict[str, Any]]:
    segments, at = [], 0.0
    for place, (_, fields) in enumerate(OUTCOMES, start=1):
        share = sum(_sum(parts, field) for field in fields) / offered if offered else 0.0
        if share:
            label = percent(share) if share >= _LABELLED else ""
            segments.append(
                {"x": round(100 * at, 2), "width": round(100 * share, 2), "kind": place, "label": label}
            )
        at += share
    return segments


def room_bars(back: WayBack | None) -> list[dict[str, Any]]:
    """Return the tokens of both caches as bars; empty where either is not told."""
    if back is None or not back.candidate_tokens or not back.baseline_tokens:
        return []
    most = max(back.candidate_tokens, back.baseline_tokens)
    held = (("candidate", back.candidate_tokens), ("baseline", back.baseline_tokens))
    return [
        {"name": name, "tokens": f"{tokens:,}", "width": round(100 * tokens / most, 2)}
        for name, tokens in held
    ]
