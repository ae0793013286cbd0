"""The charts are sound Vega-Lite: Altair, which carries the schema, takes every one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair
import pytest
from jsonschema import ValidationError

from kvtrace.report.bins import BINS, RANGE_BINS
from kvtrace.report.charts.absmax_bands import absmax_bands
from kvtrace.report.charts.before_after import before_after
from kvtrace.report.charts.by_position import by_position
from kvtrace.report.charts.clip_flush import clip_flush
from kvtrace.report.charts.heat_map import heat_map
from kvtrace.report.charts.scales import scales_by_layer

if TYPE_CHECKING:
    from kvtrace.report.charts.axes import Spec

CHARTS: dict[str, Spec] = {
    "heat map of losses": heat_map(BINS),
    "heat map of range used": heat_map(RANGE_BINS, colours="ramp"),
    "heat map alone": heat_map(alone=True),
    "clipping against flushing": clip_flush(floor=1e-6),
    "bands": absmax_bands(),
    "scales": scales_by_layer(),
    "SQNR by position": by_position(title="dB", floor=None),
    "share by position": by_position(title="share of tokens", floor=1e-5),
    "SQNR before and after": before_after(floor=None, low=10, high=40),
    "share before and after": before_after(floor=1e-5, low=1e-5, high=0.1),
}


def checked(spec: Spec) -> None:
    altair.LayerChart.from_dict(spec)


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_vega_lite_as_its_schema_has_it(name: str) -> None:
    checked(CHARTS[name])


def test_a_property_that_vega_lite_does_not_have_is_noticed() -> None:
    """Shows that the test above can fail."""
    layers: list[dict[str, Any]] = [dict(one) for one in CHARTS["bands"]["layer"]]
    layers[1]["mark"] = {**layers[1]["mark"], "opaqueness": 1}
    with pytest.raises(ValidationError):
        checked({**CHARTS["bands"], "layer": layers})


def test_a_share_of_nothing_is_drawn_and_labelled_at_the_floor() -> None:
    (bars,) = [one for one in CHARTS["share by position"]["layer"] if one["mark"].get("size") == 55]
    y = bars["encoding"]["y"]
    assert y["scale"]["domain"] == [1e-5, 1.0]
    assert y["axis"]["values"] == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
    assert y["axis"]["labelExpr"].startswith("datum.value < 2e-05 ? '0'")
