"""The main charts as files, for chat and documents: PNG and SVG, on white."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.errors import InputError
from kvtrace.files.replaced import replace_file
from kvtrace.report.charts.absmax_bands import absmax_bands
from kvtrace.report.charts.before_after import before_after
from kvtrace.report.charts.by_position import by_position
from kvtrace.report.charts.heat_map import heat_map
from kvtrace.report.charts.theme import LIGHT, chart_config
from kvtrace.report.html.axes import TENSORS
from kvtrace.report.html.page import distinct_labels, first_choice, scale_ends
from kvtrace.report.html.tables import chart_data
from kvtrace.report.plot_rows import Rows, band_rows, before_after_rows, heat_map_rows, position_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kvtrace.report.charts.axes import Spec
    from kvtrace.report.html.tables import ChartData
    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run

_PIXELS_PER_POINT: Final = 2
_MOST_WORKLOADS: Final = 6


def write_plots(report: Report, run: Run, directory: Path) -> list[Path]:
    """Write heat-map, by-position, absmax-bands and before-after, each as .png and .svg; return the files.

    They show what the page shows first: the scales of the answer, and its most harmed head.
    Raises InputError: the directory cannot be written.
    """
    import vl_convert

    data = chart_data(run, report)
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, spec in _plots(report, data):
            svg, png = directory / f"{name}.svg", directory / f"{name}.png"
            replace_file(svg, vl_convert.vegalite_to_svg(spec))
            replace_file(png, vl_convert.vegalite_to_png(spec, scale=_PIXELS_PER_POINT))
            written += [svg, png]
    except OSError as error:
        raise InputError(f"{directory}: cannot be written: {error.strerror}") from error
    return written


def _plots(report: Report, data: ChartData) -> Iterator[tuple[str, Spec]]:
    if not data.candidates or not data.heads:
        return
    choice, ends = first_choice(report, data), scale_ends(data)
    shown, before = choice["candidate"], choice["before"]
    labels = distinct_labels(data.candidates)
    clipped = ends["clipped_frac"]
    layers = len({layer for layer, _ in data.heads})
    maps = [
        _filled(heat_map(alone=True), heat_map_rows(data, shown, tensor))
        | {"title": f"{label.upper()}: share of values clipped under {labels[shown]}"}
        | {"width": max(500, layers * 14), "height": {"step": 18}}
        for tensor, label in enumerate(TENSORS)
    ]
    yield "heat-map", _document({"vconcat": maps})
    yield (
        "by-position",
        _document({"hconcat": list(_positions(data, shown, ends["position"], labels[shown]))}),
    )
    if bands := list(_bands(data, shown, labels[shown], choice["harmed"])):
        yield "absmax-bands", _document({"hconcat": bands})
    if before != shown:
        rows = before_after_rows(data, before, shown, clipped["floor"], clipped["low"], clipped["high"])
        title = f"share of values clipped: {labels[before]} (before), {labels[shown]} (after)"
        yield (
            "before-after",
            _document(_filled(before_after(**clipped), rows) | {"title": title, "width": 420, "height": 340}),
        )


def _positions(data: ChartData, shown: int, floor: float, label: str) -> Iterator[Spec]:
    panels = {
        "vectors_out_of_range": ("tokens with a value out of range", "share of tokens", floor),
        "vectors_clipped": ("tokens with a clipped value", "share of tokens", floor),
        "sqnr_db": ("SQNR", "dB", None),
    }
    for name, (what, unit, zero) in panels.items():
        spec = _filled(by_position(title=unit, floor=zero), position_rows(data, shown, name, zero))
        yield spec | {"title": f"{what}, {label}", "width": 300, "height": 190}


def _bands(data: ChartData, shown: int, label: str, harmed: Sequence[int] | None) -> Iterator[Spec]:
    """Yield the most harmed head's bands, workload by workload. harmed: its place, and that of its tensor."""
    head, tensor = harmed or (0, 0)
    if np.isnan(data.bands["absmax_max"][tensor, head]).all():
        return
    layer, kv_head = data.heads[head]
    who = f"layer {layer} head {kv_head} {TENSORS[tensor].upper()}, covered by {label}"
    for workload, name in enumerate(distinct_labels(data.workloads)[:_MOST_WORKLOADS]):
        rows = band_rows(data, shown, tensor, head, workload)
        title = {"text": name, "subtitle": who if workload == 0 else ""}
        yield _filled(absmax_bands(), rows) | {"title": title, "width": 220, "height": 190}


def _filled(chart: Spec, rows: dict[str, Rows]) -> Spec:
    """Return the chart's spec with its data in it, instead of by name."""
    spec: Spec = _with_values(chart, rows)
    return {key: value for key, value in spec.items() if key != "$schema"}


def _with_values(part: Any, rows: dict[str, Rows]) -> Any:
    if isinstance(part, list):
        return [_with_values(one, rows) for one in part]
    if not isinstance(part, dict):
        return part
    if set(part) == {"name"} and part["name"] in rows:
        return {"values": rows[part["name"]]}
    # Charts side by side must not share the names of their layers: Vega-Lite would share the data too.
    names = {"name"} if "mark" in part else set()
    return {key: _with_values(value, rows) for key, value in part.items() if key not in names}


def _document(spec: Spec) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": chart_config(LIGHT) | {"background": LIGHT.paper},
        "padding": 12,
        **spec,
    }
