"""The section on harm, and harm against bytes: places in per cent across and in pixels down."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import percent, times
from kvtrace.plain_text import plain
from kvtrace.report.harm.words import (
    LACKING,
    MEASURED_IN,
    causes_sentence,
    diagnoses_sentence,
    harm_figure,
    harm_sentence,
    layers_sentence,
    strata_sentences,
)
from kvtrace.report.html.answer import upper_first
from kvtrace.report.shown import shown_candidates
from kvtrace.report.statements import cache_bytes
from kvtrace.report.wording import ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.report.harm.model import CandidateHarm, Harm, LayerHarm
    from kvtrace.report.sections import Report

_NAME: Final = 60
_LOW: Final = 1e-4
_TICKS: Final = ((1e-4, "0.01 %"), (1e-3, "0.1 %"), (1e-2, "1 %"), (0.1, "10 %"), (1.0, "100 %"))
_LANE: Final = 24
_MOST_BARS: Final = 12
_FRONT_HEIGHT: Final = 220
_LABEL_APART: Final = 15


def harm_parts(report: Report) -> dict[str, Any] | None:
    """Return the template's `harm`; None: it was not measured. Every name is plain text."""
    harm = report.harm
    own = harm.of(report.answer.candidate) if harm else None
    if harm is None or own is None:
        return None
    fresh = [one for one in harm.candidates if one.kind == "fresh" and one is not own]
    sentences = (
        layers_sentence(harm, own),
        causes_sentence(own),
        *strata_sentences(harm),
        LACKING[harm.knowledge],
    )
    layers = [one for one in harm.layers if one.candidate == own.candidate and one.harm]
    return {
        "finding": upper_first(harm_sentence(harm, own)),
        "measured_in": MEASURED_IN[harm.knowledge],
        "ruler": _ruler(harm, [own, *fresh]) if harm.knowledge == "residual" else None,
        "diagnoses": diagnoses_sentence(harm, own),
        "sentences": [upper_first(ended(one)) for one in sentences if one],
        "bars": _bars(harm, layers),
        "strata": [_stratum(harm, one) for one in harm.strata],
    }


def front_parts(report: Report) -> dict[str, Any] | None:
    """Return the template's `front`: points, the line of those that nothing beats, and the table."""
    harm = report.harm
    if harm is None:
        return None
    known = {one.candidate: one for one in shown_candidates(report)}
    listed = [one for one in harm.candidates if one.candidate in known]
    sized = {name: size for name, one in known.items() if (size := one.bytes_per_token) is not None}
    rows = [
        {
            "name": plain(one.candidate, _NAME),
            "is_front": one.candidate in harm.front,
            "harm": harm_figure(harm, one.harm),
            "interval": _interval(harm, one),
            "ratio": times(one.ratio) if one.harm else "–",
            "bytes": cache_bytes(known[one.candidate]) or "–",
        }
        for one in sorted(listed, key=lambda one: (-sized.get(one.candidate, 0), one.harm or 0))
    ]
    drawn = [one for one in listed if one.candidate in sized and one.harm is not None]
    own = report.answer.candidate
    return {
        "rows": rows,
        "picture": _picture(harm, drawn, sized, own),
        "measured_in": MEASURED_IN[harm.knowledge],
    }


def _interval(harm: Harm, one: CandidateHarm) -> str:
    if one.harm_low is None or one.harm_high is None:
        return "–"
    return f"{harm_figure(harm, one.harm_low)} to {harm_figure(harm, one.harm_high)}"


def _ruler(harm: Harm, marks: Sequence[CandidateHarm]) -> dict[str, Any]:
    named = [
        {
            "x": _across(one.harm or 0.0),
            "low": None if one.harm_low is None else _across(one.harm_low),
            "high": None if one.harm_high is None else _across(one.harm_high),
            "y": 16 + _LANE * place,
            "text": f"{plain(one.candidate, _NAME)}: {harm_figure(harm, one.harm)}",
            "is_left": _across(one.harm or 0.0) > 45,
        }
        for place, one in enumerate(marks)
    ]
    return {
        "floor": 16 + _LANE * len(named),
        "ticks": [{"x": _across(at), "text": text} for at, text in _TICKS],
        "marks": named,
        "said": "Harm: " + "; ".join(str(one["text"]) for one in named),
    }


def _across(share: float) -> float:
    inside = min(max(share, _LOW), 1.0)
    return round(1 + 98 * math.log(inside / _LOW) / math.log(1 / _LOW), 2)


def _bars(harm: Harm, layers: Sequence[LayerHarm]) -> list[dict[str, Any]]:
    """Return the layers that add most as bars, and the others as one."""
    ranked = sorted(layers, key=lambda one: -(one.harm or 0))
    first, rest = ranked[:_MOST_BARS], ranked[_MOST_BARS:]
    values = [(f"layer {one.layer}", one.harm or 0.0, one.k_share) for one in first]
    if rest:
        values.append((f"{len(rest)} more", sum(one.harm or 0.0 for one in rest), None))
    widest = max((value for _, value, _ in values), default=0.0)
    return [
        {
            "name": name,
            "width": round(60 * value / widest, 2) if widest else 0,
            "y": 18 * place,
            "text": harm_figure(harm, value) + (f", K's share {percent(share)}" if share is not None else ""),
        }
        for place, (name, value, share) in enumerate(values)
    ]


def _stratum(harm: Harm, one: CandidateHarm) -> dict[str, str]:
    if one.workload is not None:
        place = plain(one.workload, _NAME)
    elif one.position_from is not None:
        place = f"positions from {one.position_from:,}"
    else:
        place = f"generated tokens from {one.step_from:,}" if one.step_from else "the prompt"
    return {
        "place": place,
        "harm": harm_figure(harm, one.harm),
        "interval": _interval(harm, one),
        "ratio": times(one.ratio),
        "flipped": percent(one.flipped_frac),
        "requests": f"{one.num_requests:,}",
        "probes": f"{one.num_probes:,}",
    }


def _picture(
    harm: Harm, drawn: Sequence[CandidateHarm], sized: dict[str, int], own: str | None
) -> dict[str, Any] | None:
    """Return harm against bytes, both logarithmic; what does no harm stands on the floor.

    own: the scales of the answer, which have their label wherever others have none.
    """
    above = [one.harm for one in drawn if one.harm]
    if len(drawn) < 2 or not above:
        return None
    low, high = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)) + 1e-9)
    least, most = (math.log(end(sized[one.candidate] for one in drawn)) for end in (min, max))
    points = [
        {
            "x": round(8 + 74 * (math.log(sized[one.candidate]) - least) / ((most - least) or 1), 2),
            "y": round(_down(one.harm, low, high), 1),
            "name": plain(one.candidate, _NAME),
            "is_front": one.candidate in harm.front,
            "is_own": one.candidate == own,
            "text": None,
        }
        for one in drawn
    ]
    _place_labels(points)
    steps = _steps(sorted((p for p in points if p["is_front"]), key=lambda p: (p["x"], -p["y"])))
    return {
        "height": _FRONT_HEIGHT,
        "points": sorted(points, key=lambda point: point["is_front"]),  # these are drawn over the others
        "steps": steps,
        "ticks": [
            {"y": round(_down(10.0**n, low, high), 1), "text": harm_figure(harm, 10.0**n)}
            for n in range(low, high + 1)
        ],
        "sizes": [
            {"x": x, "text": f"{size:,}"}
            for size, x in sorted(
                {(sized[one.candidate], p["x"]) for one, p in zip(drawn, points, strict=True)}
            )
        ][:: max(1, len(sized) // 4)],
        "said": "Harm against bytes a token: "
        + "; ".join(
            f"{plain(one.candidate, _NAME)} {harm_figure(harm, one.harm)}, {sized[one.candidate]:,}"
            for one in drawn
        ),
    }


def _steps(front: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines from each to the next: across, then down."""
    lines = []
    for here, there in pairwise(front):
        corner = {"x1": there["x"], "y1": here["y"]}
        lines.append({"x1": here["x"], "y1": here["y"], "x2": there["x"], "y2": here["y"]})
        lines.append(corner | {"x2": there["x"], "y2": there["y"]})
    return lines


def _down(value: float | None, low: int, high: int) -> float:
    """Return pixels from the top; 0 stands below the lowest decade."""
    if not value:
        return _FRONT_HEIGHT - 12
    return 10 + (_FRONT_HEIGHT - 44) * (high - math.log10(value)) / max(high - low, 1)


def _place_labels(points: Sequence[dict[str, Any]]) -> None:
    """Label those with room for it, the answer's scales and the front first; the table names all."""
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda one: (not one["is_own"], not one["is_front"])):
        if all(abs(point["y"] - y) >= _LABEL_APART or abs(point["x"] - x) > 30 for x, y in taken):
            point["text"] = point["name"]
            taken.append((point["x"], point["y"]))
