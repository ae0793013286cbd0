"""The HTML report as text: nothing from outside, nothing executable from names, numbers of the queries."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fabricate_run import fabricate_run, read_tables
from support.hostile_run import IMAGE, SCRIPT, hostile_run
from support.run_cli import kvtrace

from kvtrace.report.build import build_report
from kvtrace.report.html.page import calibrated_rule, short_positions
from kvtrace.report.html.render import report_html
from kvtrace.report.html.tables import ChartData, chart_data
from kvtrace.report.plots import _plots
from kvtrace.report.terminal.text import report_text
from kvtrace.runs.manifest import ServingManifest
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from kvtrace.runs.open import Run

CASES = Path(__file__).parents[1] / "queries" / "input"


class Parts(HTMLParser):
    """Every element's attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag in ("script", "style") and self.cdata_elem == tag:
            self.raw.append((tag, attributes, data))
        else:
            self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(fabricate_run(tmp_path_factory.mktemp("runs") / "shared.run", read_tables(CASES)))


@pytest.fixture(scope="module")
def data(run: Run) -> ChartData:
    return chart_data(run, build_report(run))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    opened = open_run(hostile_run(tmp_path_factory.mktemp("hostile")))
    return report_html(build_report(opened), opened)


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_names_the_hash_of_every_script_and_style_and_nothing_else(hostile: str) -> None:
    parts = Parts(hostile)
    policy = next(
        a["content"] for tag, a in parts.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    rules = {rule.split()[0]: rule.split()[1:] for rule in (policy or "").split("; ")}
    scripts = [text for tag, a, text in parts.raw if tag == "script" and "type" not in a]
    styles = [text for tag, _, text in parts.raw if tag == "style"]
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == [digest(text) for text in scripts]
    assert rules["style-src"] == [digest(text) for text in styles]
    assert len(scripts) == 3
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}


def test_no_element_refers_to_anything_outside_the_file(hostile: str) -> None:
    for tag, attributes in Parts(hostile).elements:
        for name in ("src", "href", "action", "srcset", "data", "poster", "formaction"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)


def test_hostile_names_make_no_element(hostile: str) -> None:
    parts = Parts(hostile)
    tags = [tag for tag, _ in parts.elements]
    assert "img" not in tags
    assert tags.count("script") == 4
    assert SCRIPT in parts.text
    assert IMAGE in parts.text
    assert "x" * 4_000 in parts.text
    assert "\u202e" not in hostile


def test_heads_carry_the_shares_of_the_shared_cases(data: ChartData) -> None:
    """From tests/queries/input/README.md: of K head 0, 0 of 20, 4 of 20 and 2 of 10 (weight 3) are out."""
    assert data.candidates == ("shipped", "running")
    assert data.heads == ((0, 0), (0, 1))
    assert data.workloads == ("chat", "code")
    assert data.by_head["out_of_range_frac"][0, 0].tolist() == pytest.approx([10 / 70, 1 / 70])
    assert data.by_head["clipped_frac"][0, 0].tolist() == pytest.approx([5 / 70, 0])
    assert data.by_head["vectors_out_of_range"][0, 0].tolist() == pytest.approx([5 / 7, 1 / 7])
    assert data.by_workload["clipped_frac"][0, 0, 0].tolist() == pytest.approx([2 / 40, 1 / 10])
    assert data.by_head["sqnr_db"][:, 1, 0].tolist() == pytest.approx([30, 20])
    assert data.num_requests["by_workload"].tolist() == [[1, 1], [1, 1]]


def test_positions_carry_each_head_and_all_heads_together(data: ChartData) -> None:
    assert data.strata == (("prefill", 0), ("decode", 1))
    shares = data.by_position["vectors_clipped"][0, 0]
    assert shares[0].tolist() == pytest.approx([3 / 5, 1 / 2])
    assert shares[2].tolist() == pytest.approx([3 / 10, 1 / 4])
    assert np.all(data.by_position["vectors_clipped_high"] >= data.by_position["vectors_clipped"])


def test_what_was_not_measured_is_missing_and_not_zero(data: ChartData) -> None:
    """The shared cases' codes are those of no dtype, so their magnitudes are unknown."""
    assert np.isnan(data.bands["absmax_max"]).all()


def test_the_sweep_is_laid_out_by_head_and_scale(data: ChartData) -> None:
    """K head 0 of the shared cases has three scales, K head 1 and V head 0 the middle one, V head 1 none."""
    sweep = data.sweep
    assert sweep is not None
    assert sweep.multiples == (0.5, 1, 4096)
    assert sweep.amax[0].tolist() == [448, 448]
    assert sweep.shares["clipped_frac"][0, 0].tolist() == [5 / 50, 0, 0]
    assert sweep.shares["flushed_frac"][0, 0].tolist() == [0, 2 / 50, 1]
    assert sweep.shares["relative_error"][0, 0].tolist() == [20 / 400, 1 / 400, 1]
    assert np.isnan(sweep.shares["clipped_frac"][0, 1]).tolist() == [True, False, True]
    assert np.isnan(sweep.amax[1]).tolist() == [False, True]


def test_a_run_without_a_sweep_says_so_instead_of_drawing_one(tmp_path: Path) -> None:
    opened = open_run(fabricate_run(tmp_path / "direct.run", read_tables(CASES) | {"sweep": []}))
    page = report_html(build_report(opened), opened)
    assert "Other scales were not tried here" in page
    assert 'id="clip-flush"' not in page


def test_the_calibrated_length_stands_where_uncalibrated_positions_begin() -> None:
    octaves = [0, 7, 8, 9]
    marks = {length: calibrated_rule(length, octaves)[0] for length in (200, 256, 512, 600, 4096)}
    assert {length: (m["order"], m["edge"]) for length, m in marks.items()} == {
        200: (7, 0),
        256: (8, 0),
        512: (9, 0),
        600: (9, 0),
        4096: (9, 1),
    }
    assert marks[600]["text"] == "calibrated below 600"
    assert calibrated_rule(None, octaves) == []


def test_a_candidate_covers_448_times_its_scale(data: ChartData) -> None:
    assert data.covered_amax[:, 0, 0].tolist() == [224, 448]


def test_a_run_whose_candidates_all_quantize_nothing_has_a_page_without_charts(tmp_path: Path) -> None:
    tables = read_tables(CASES)
    for name in ("candidates", "cells", "scales"):
        tables[name] = [row for row in tables[name] if row["candidate"] == "bf16"]
    opened = open_run(fabricate_run(tmp_path / "bare.run", tables))
    parts = Parts(report_html(build_report(opened), opened))
    assert "not quantized" in parts.text
    assert not [a for _, a in parts.elements if "chart" in (a.get("class") or "").split()]
    assert [tag for tag, _ in parts.elements].count("script") == 1


def test_positions_of_an_octave_fit_an_axis() -> None:
    assert [short_positions(octave) for octave in (0, 1, 9, 12)] == ["0–1", "2–3", "512–1k", "4k–8k"]


def test_the_command_writes_the_page_and_the_plots(tmp_path: Path) -> None:
    run = open_run(hostile_run(tmp_path))
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    words = ["report", str(run.path), "--format", "html", "-o", str(page), "--plots", str(plots)]
    result = kvtrace(*words)
    assert result.returncode == 0, result.stderr
    assert page.read_text().startswith("<!DOCTYPE html>")
    names = {"heat-map", "by-position", "absmax-bands", "before-after"}
    assert {file.name for file in plots.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }
    assert (plots / "heat-map.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (plots / "heat-map.svg").read_text()
    assert (plots / "by-position.svg").read_text().count("calibrated below 2") >= 3


def test_the_page_comes_beside_any_other_format_and_is_the_same(run: Run, tmp_path: Path) -> None:
    alone, beside, text = tmp_path / "alone.html", tmp_path / "beside.html", tmp_path / "report.txt"
    for words in (
        ["--format", "html", "-o", str(alone)],
        ["--page", str(beside), "-o", str(text)],
    ):
        result = kvtrace("report", str(run.path), *words)
        assert result.returncode == 0, result.stderr
    assert beside.read_text() == alone.read_text()
    assert text.read_text() == report_text(build_report(run))


def test_two_options_for_one_page_are_refused(run: Run, tmp_path: Path) -> None:
    words = ["report", str(run.path), "--format", "html", "--page", str(tmp_path / "page.html")]
    result = kvtrace(*words)
    assert result.stderr == "kvtrace: --page and --format html both give the page; leave one out\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["-o", "--plots", "--page"])
def test_an_output_that_exists_is_not_overwritten(run: Run, tmp_path: Path, option: str) -> None:
    existing = tmp_path / "there"
    existing.mkdir()
    chosen = [] if option == "--page" else ["--format", "html"]
    result = kvtrace("report", str(run.path), *chosen, option, str(existing))
    assert result.returncode != 0
    assert "exists" in result.stderr
    assert list(existing.iterdir()) == []


def test_the_serving_manifest_is_shown_by_its_own_names_and_what_nobody_supplied_is_absent(run: Run) -> None:
    supplied = ServingManifest(kernel_revision="abc123", skipped_layers=(3,))
    with_manifest = replace(run, record=run.record.model_copy(update={"manifest": supplied}))
    page = report_html(build_report(with_manifest), with_manifest)
    assert ">kernel_revision</th>" in page
    assert ">abc123<" in page
    assert ">gpu_inventory</th>" not in page


def test_the_maps_of_k_and_v_in_a_plot_hold_different_numbers(tmp_path: Path) -> None:
    """Layers of one name would share their data."""
    tables = read_tables(CASES)
    for name in ("candidates", "cells", "scales"):
        tables[name] = [row for row in tables[name] if row["candidate"] != "running"]
    run = open_run(fabricate_run(tmp_path / "shipped.run", tables))
    report = build_report(run)
    plots: dict[str, Any] = dict(_plots(report, chart_data(run, report)))
    k, v = (json.dumps(part["layer"][1]["data"]) for part in plots["heat-map"]["vconcat"])
    assert k != v
    assert '"name"' not in json.dumps([part["layer"] for part in plots["heat-map"]["vconcat"]])
