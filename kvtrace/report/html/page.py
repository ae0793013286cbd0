"""What the page's scripts work with: arrays, labels, chart specs, and what is chosen at first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.figures import positions
from kvtrace.plain_text import plain
from kvtrace.report.before_after.build import SAME_WITHIN
from kvtrace.report.bins import BINS, RANGE_BINS
from kvtrace.report.charts.absmax_bands import absmax_bands
from kvtrace.report.charts.before_after import before_after
from kvtrace.report.charts.by_position import by_position
from kvtrace.report.charts.clip_flush import clip_flush
from kvtrace.report.charts.heat_map import heat_map
from kvtrace.report.charts.scales import scales_by_layer
from kvtrace.report.charts.theme import DARK, LIGHT, chart_config
from kvtrace.report.html.arrays import pack_counts, pack_decibels, pack_exact, pack_shares
from kvtrace.report.html.axes import TENSORS
from kvtrace.report.html.tables import BANDS
from kvtrace.stats.fractions import MIN_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvtrace.report.html.sweep import Sweep
    from kvtrace.report.html.tables import ChartData
    from kvtrace.report.sections import Report

_LABEL_WIDTH: Final = 48
_LEAST_FLOOR: Final = 1e-9


def page_document(report: Report, data: ChartData) -> dict[str, Any]:
    """Return the page's data as JSON values; names are plain text, cut to a label's width."""
    ends = scale_ends(data)
    labels = distinct_labels(data.candidates)
    sources = [source.name for source in report.sources]
    return {
        "run": plain(report.run or "RUN", 400),
        "run_kept": report.run is not None,
        "candidates": [
            {"label": label, "name": plain(name, 400), "calibrated": calibrated_rule(length, data.octaves)}
            for label, name, length in zip(labels, data.candidates, data.calibrated_max_length, strict=True)
        ],
        "workloads": distinct_labels(data.workloads),
        "sources": distinct_labels(sources),
        "heads": [list(head) for head in data.heads],
        "strata": [[phase, axis_start(octave), octave] for phase, octave in data.strata],
        "octaves": [[axis_start(octave), octave] for octave in data.octaves],
        "positions": {str(octave): positions(*_ends(octave)) for octave in data.octaves},
        "bins": {
            "loss": [[one.letter, one.below] for one in BINS[:-1]],
            "range": [[one.letter, one.below] for one in RANGE_BINS[:-1]],
        },
        "bandNames": list(BANDS),
        "minRequests": MIN_REQUESTS,
        "floors": {"position": ends["position"], "sweep": ends["sweep"]},
        "sqnr": ends["sqnr_db"],
        "sweptSource": data.sweep and plain(data.sweep.source, _LABEL_WIDTH),
        "multiples": list(data.sweep.multiples) if data.sweep else [],
        "arrays": _arrays(data),
        "audit": _audit(data, sources),
        "specs": _specs(ends),
        "config": {"light": chart_config(LIGHT), "dark": chart_config(DARK)},
        "initial": first_choice(report, data),
    }


def distinct_labels(names: Iterable[str]) -> list[str]:
    """Return names as short plain text; those that would look the same are numbered.

    >>> distinct_labels(["chat", "x" * 60, "x" * 61])[1:]  # doctest: +ELLIPSIS
    ['xxx...x… (2)', 'xxx...x… (3)']
    """
    shown = [plain(name, _LABEL_WIDTH) for name in names]
    return [
        f"{text} ({place})" if shown.count(text) > 1 else text for place, text in enumerate(shown, start=1)
    ]


def short_positions(octave: int) -> str:
    """Return the positions of an octave, short enough for an axis.

    >>> [short_positions(octave) for octave in (0, 1, 9, 10, 12)]
    ['0–1', '2–3', '512–1k', '1k–2k', '4k–8k']
    """
    last = 2 ** (octave + 1)
    return f"{axis_start(octave)}–{last - 1 if last < 1024 else _thousands(last)}"


def axis_start(octave: int) -> str:
    """Return the first position of an octave, short enough for an axis."""
    return _thousands(_ends(octave)[0])


def calibrated_rule(length: int | None, octaves: Sequence[int]) -> list[dict[str, Any]]:
    """Return where the calibrated length stands on an axis of octaves: one mark, or none if it is not known.

    It stands at the start of the octave of the first position that was not calibrated on (edge 0), or at the
    end of the axis (edge 1).

    >>> calibrated_rule(512, [7, 8, 9])  # doctest: +NORMALIZE_WHITESPACE
    [{'position': '512', 'order': 9, 'edge': 0, 'text': 'calibrated below 512'}]
    >>> calibrated_rule(4096, [7, 8])[0]["position"], calibrated_rule(4096, [7, 8])[0]["edge"]
    ('256', 1)
    """
    if length is None or not octaves:
        return []
    first_beyond = max(length, 1).bit_length() - 1
    place = next((i for i, octave in enumerate(octaves) if octave >= first_beyond), len(octaves))
    octave = octaves[min(place, len(octaves) - 1)]
    return [
        {
            "position": axis_start(octave),
            "order": octave,
            "edge": int(place == len(octaves)),
            "text": f"calibrated below {length:,}",
        }
    ]


def _ends(octave: int) -> tuple[int, int]:
    return (0 if octave == 0 else 2**octave), 2 ** (octave + 1) - 1


def _thousands(position: int) -> str:
    return f"{position // 1024}k" if position >= 1024 else str(position)


def _arrays(data: ChartData) -> dict[str, dict[str, Any]]:
    def packed(name: str, array: NDArray[np.float64]) -> dict[str, Any]:
        return pack_decibels(array) if name == "sqnr_db" else pack_shares(array)

    positions = {
        name: pack_decibels(array, 0.1) if name == "sqnr_db" else pack_shares(array, 0.02)
        for name, array in data.by_position.items()
        if name.startswith(("vectors_clipped", "sqnr_db"))
    }
    return {
        "byHead": {name: pack_exact(array) for name, array in data.by_head.items()},
        "byWorkload": {name: packed(name, array) for name, array in data.by_workload.items()},
        "byPosition": positions,
        "requests": {name: pack_counts(array) for name, array in data.num_requests.items()},
        "bands": {name: pack_shares(array, 0.01) for name, array in data.bands.items()},
        "sweep": _sweep(data.sweep),
        "scales": {"covered_amax": pack_exact(data.covered_amax)},
    }


def _sweep(sweep: Sweep | None) -> dict[str, dict[str, Any]]:
    if sweep is None:
        return {}
    shares = {name: pack_shares(array, 0.01) for name, array in sweep.shares.items()}
    return {"amax": pack_exact(sweep.amax), **shares}


def scale_ends(data: ChartData) -> dict[str, Any]:
    """Return where shares of zero are drawn, and the ends of the scales, over all candidates."""
    clipped, sqnr = data.by_head["clipped_frac"], data.by_head["sqnr_db"]
    finite = sqnr[np.isfinite(sqnr)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    floor = _floor([clipped])
    top = float(np.nan_to_num(clipped).max()) if clipped.size else 0.0
    shares = [array for name, array in data.by_position.items() if name != "sqnr_db"]
    sweep = [clipped, data.by_head["flushed_frac"]]
    sweep += data.sweep.shares.values() if data.sweep else []
    return {
        "clipped_frac": {"floor": floor, "low": floor, "high": min(1.0, _decade_up(max(top, floor * 10)))},
        "sqnr_db": {"floor": None, "low": math.floor(low), "high": math.ceil(high) + 1},
        "position": _floor(shares),
        "sweep": _floor(sweep),
    }


def _floor(arrays: Sequence[NDArray[np.float64]]) -> float:
    """Return the decade below the smallest share that is not zero."""
    least = min((float(array[array > 0].min()) for array in arrays if (array > 0).any()), default=1e-3)
    return max(10.0 ** (math.ceil(math.log10(least)) - 1), _LEAST_FLOOR)


def _decade_up(share: float) -> float:
    return 10.0 ** math.ceil(math.log10(share) - 1e-9)


def _audit(data: ChartData, sources: Sequence[str]) -> dict[str, Any]:
    place = {name: index for index, name in enumerate(data.candidates)}
    copied = ("min_scale", "max_scale", "min_effective_scale", "max_effective_scale", "min_headroom")
    rows = []
    for row in data.audit:
        if row["candidate"] not in place:
            continue
        covered, scale, observed = row["min_covered_amax"], row["min_scale"], row["observed_amax"]
        optimal = observed * scale / covered if None not in (observed, scale) and covered else None
        numbers = [*(row[name] for name in copied), optimal]
        rows.append(
            [
                sources.index(row["source"]),
                place[row["candidate"]],
                row["layer"],
                row["tensor"].upper(),
                *(None if value is None else float(f"{value:.6g}") for value in numbers),
            ]
        )
    return {"columns": ["source", "candidate", "layer", "tensor", *copied, "optimal"], "rows": rows}


def _specs(ends: dict[str, Any]) -> dict[str, Any]:
    return {
        "heat:loss": heat_map(BINS),
        "heat:range": heat_map(RANGE_BINS, colours="ramp"),
        "clipFlush": clip_flush(floor=ends["sweep"]),
        "bands": absmax_bands(),
        "scales": scales_by_layer(),
        "position:sqnr_db": by_position(title="dB", floor=None),
        "position:vectors_clipped": by_position(title="share of tokens", floor=ends["position"]),
        "beforeAfter": before_after(**ends["sqnr_db"]),
    }


def first_choice(report: Report, data: ChartData) -> dict[str, Any]:
    """Return the candidate to look at first and its most harmed head, those of the answer; and one to compare
    with.
    """
    kinds = {one.candidate: one.kind for one in report.candidates}
    order = sorted(
        range(len(data.candidates)),
        key=lambda c: (
            data.candidates[c] != report.answer.candidate,
            kinds[data.candidates[c]] != "effective",
            c,
        ),
    )
    candidate = order[0] if order else 0
    others = sorted(
        order[1:], key=lambda c: (_is_same(data, c, candidate), kinds[data.candidates[c]] == "unit", c)
    )
    harmed = report.answer.most_harmed
    is_known = harmed is not None and bool(order) and data.candidates[candidate] == report.answer.candidate
    return {
        "candidate": candidate,
        "before": others[0] if others else candidate,
        "harmed": [data.heads.index((harmed.layer, harmed.kv_head)), TENSORS.index(harmed.tensor)]
        if harmed is not None and is_known
        else None,
    }


def _is_same(data: ChartData, one: int, other: int) -> bool:
    """Return whether two candidates cover the same in every head, as effective scales and their file do."""
    covered = data.covered_amax
    return np.allclose(covered[one], covered[other], rtol=SAME_WITHIN, equal_nan=True)
