"""The HTML report in a real browser: what it shows, that it answers, and that it keeps to itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from support.browser_visit import SCREENSHOTS, RefusingProxy, kvtrace
from support.hostile_run import IMAGE, LONG, SCRIPT

from kvtrace.figures import decibel, number, percent, times
from kvtrace.report.answer.words import head_name
from kvtrace.report.html import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.browser_visit import Visit

    Open = Callable[..., Visit]

SHOWN = ("choice", "incident", "sound", "invalid", "before-after")
ARTIFACTS = ["chat-per-tensor", "chat-per-head", "all-per-head", "halved", "unit"]


@pytest.fixture(scope="module")
def answers(shown_runs: dict[str, tuple[Path, ...]]) -> dict[str, dict[str, Any]]:
    return {
        name: json.loads(kvtrace("report", *map(str, runs), "--json"))["answer"]
        for name, runs in shown_runs.items()
    }


def marks(shown: Visit, tensor: str) -> int:
    return shown.page.locator(f"#heat-{tensor} .mark-rect path[aria-label^='layer']").count()


def finding(shown: Visit) -> str:
    return shown.page.locator("#heads-finding").inner_text()


def middle(shown: Visit, selector: str) -> tuple[float, float]:
    box = shown.page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_page_asks_for_nothing_and_complains_of_nothing(
    visit: Open, sample_page: Path, proxy: RefusingProxy
) -> None:
    proxy.visits.clear()
    shown = visit(sample_page)
    shown.page.select_option("#candidate", label="halved")
    shown.unfold()
    inside = ("file:", "data:", "blob:")
    assert [url for url in shown.requests if not url.startswith(inside)] == []
    assert [url for url in shown.requests if url.startswith("file:")] == [sample_page.as_uri()]
    assert shown.complaints == []
    assert proxy.from_page() == []


def test_no_page_names_a_host_that_the_browser_asks_by_itself(sample_page: Path, hostile_page: Path) -> None:
    for page in (sample_page, hostile_page):
        text = page.read_text().lower()
        assert not any(name in text for name in (".google", "googleapis", "gstatic"))


def test_the_proxy_would_notice_a_request(visit: Open, sample_page: Path, proxy: RefusingProxy) -> None:
    """Shows that the test above can fail: a page without a policy is seen by the proxy."""
    proxy.visits.clear()
    shown = visit(sample_page)
    shown.page.goto("about:blank")
    shown.page.evaluate("fetch('http://example.invalid/').catch(() => 0)")
    assert any(b"example.invalid" in request for request in proxy.from_page())


def test_the_policy_stops_what_would_leave_the_page(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    shown.page.evaluate(
        "document.body.append(Object.assign(new Image(), {src: 'http://example.invalid/x.png'}))"
    )
    shown.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"document.title=1\" id=b>b</b>')"
    )
    shown.page.locator("#b").click()
    shown.page.wait_for_timeout(300)
    assert shown.page.title() != "1"
    assert any("Content Security Policy" in complaint for complaint in shown.complaints)
    blocked = shown.page.evaluate("fetch('http://example.invalid/').then(() => 'sent', () => 'blocked')")
    assert blocked == "blocked"


@pytest.mark.parametrize("name", SHOWN)
def test_the_answer_prints_every_field_of_the_json_character_for_character(
    visit: Open, shown_pages: dict[str, Path], answers: dict[str, dict[str, Any]], name: str
) -> None:
    answer = answers[name]
    page = visit(shown_pages[name]).page
    shown = " ".join((page.locator("#answer").text_content() or "").split())
    action = answer["action"]
    said = [answer["headline"], answer["kind"], *answer["where"], *answer["matters"], answer["sure"]["text"]]
    said += [text for text in (action["text"], action["command"], action["until"]) if text]
    said += [one[field] for one in answer["questions"] for field in ("question", "answer", "because")]
    for text in said:
        first, rest = text[:1], text[1:]
        assert any(start + rest in shown for start in (first, first.upper())), text
    assert answer["state"].casefold() in page.locator("h1 .mark").inner_text().casefold()
    for one in answer["ruler"]:
        if one["candidate"] == answer["candidate"]:
            assert f"{one['tensor'].upper()} {times(one['ratio'])}" in shown


@pytest.mark.parametrize("name", ["choice", "incident"])
def test_one_head_is_called_most_harmed_wherever_one_is_shown(
    visit: Open, shown_pages: dict[str, Path], answers: dict[str, dict[str, Any]], name: str
) -> None:
    answer = answers[name]
    most = answer["most_harmed"]
    called = head_name((most["layer"], most["kv_head"], most["tensor"]))
    shown = visit(shown_pages[name])
    shown.unfold()
    page = shown.page
    assert called in page.locator("#answer dl dd").first.inner_text().replace("Layer", "layer")
    assert finding(shown).lower().startswith(called.lower())
    assert page.locator(".head [data-focus]").inner_text().lower() == called.lower()
    first = page.locator("[data-of-candidate]:visible tbody tr th").first
    assert first.inner_text() == called
    outlined = middle(shown, f"#heat-{most['tensor']} .chosen_marks path")
    cell = middle(shown, f"#heat-{most['tensor']} .mark-rect path[aria-label^='{called}']")
    assert outlined == pytest.approx(cell, abs=2)


def test_the_script_finds_the_same_heading_as_the_page_without_it(
    visit: Open, shown_pages: dict[str, Path]
) -> None:
    for name in ("choice", "incident"):
        assert finding(visit(shown_pages[name])) == finding(visit(shown_pages[name], script=False))


def test_the_pages_own_figures_are_those_of_the_other_outputs(visit: Open, sample_page: Path) -> None:
    page = visit(sample_page).page
    wording = Path(render.__file__).with_name("templates") / "wording.js"
    shares = [0.0, 1e-7, 9.99e-6, 1e-5, 0.00123, 0.0125, 0.0995, 0.5, 0.985, 0.9949, 0.99949, 0.9996, 1.0]
    ratios = [0.0412, 0.25, 0.999, 1.0, 1.523, 9.96, 19.4, 163.0, 4096.0, 12345.0]
    levels = [-0.04, 0.0, 0.05, 3.25, 9.95, 31.987, 99.96]
    sizes = [0.0123456, 1.0, 448.0, 7.188, 19.375]
    page.goto("about:blank")
    found = page.evaluate(
        f"""([shares, ratios, levels, sizes]) => {{ {wording.read_text()}
        return [shares.map(percent), ratios.map(times), levels.map(decibel), sizes.map(magnitude)] }}""",
        [shares, ratios, levels, sizes],
    )
    assert found == [
        [percent(one) for one in shares],
        [times(one) for one in ratios],
        [decibel(one) for one in levels],
        [number(one) for one in sizes],
    ]


def test_the_heat_map_has_a_mark_for_every_layer_and_head(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    assert marks(shown, "k") == 30 * 3
    assert marks(shown, "v") == 30 * 3


def test_a_colour_means_the_same_loss_in_every_report(visit: Open, incident_run: Path) -> None:
    """The losses of the incident's three heads, and the colours of their bins in the design's table."""
    losses = {
        (one["layer"], one["kv_head"]): one["clip_error"]
        for one in json.loads(kvtrace("report", str(incident_run), "--json"))["losses"]
        if one["tensor"] == "k" and one["clip_error"]
    }
    shown = visit(incident_run.with_suffix(".html"))
    colours = {(0.01, 0.1): "#b32d5b", (0.1, 1): "#4a0f57"}
    assert len(losses) == 3
    for (layer, kv_head), loss in losses.items():
        (colour,) = [one for (low, high), one in colours.items() if low <= loss < high]
        cell = shown.page.locator(f"#heat-k .cells_marks path[aria-label^='layer {layer} head {kv_head} K']")
        assert cell.get_attribute("fill") == colour
        assert f"loses {percent(loss)} of its energy" in (cell.get_attribute("aria-label") or "")


def test_a_click_on_a_cell_shows_that_head_alone(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    shown.unfold()
    curve = shown.page.locator("#clip-flush .mark-line path").first.get_attribute("d")
    shown.page.locator("#heat-k path[aria-label^='layer 18 head 2 K']").click()
    shown.settle()
    assert shown.page.locator(".head [data-focus]").inner_text() == "Layer 18 head 2 K"
    assert finding(shown) == "Layer 17 head 0 V is closest to the edge"
    assert shown.page.locator("#clip-flush .mark-line path").first.get_attribute("d") != curve
    command = shown.page.locator("[data-query=absmax_bands]").text_content() or ""
    assert "--param layer=18 --param kv_head=2" in command


def test_a_link_in_formats_shows_its_scales_on_the_whole_page_and_its_address_does_too(
    visit: Open, sample_page: Path
) -> None:
    shown = visit(sample_page)
    shown.page.locator("#formats a", has_text="halved").click()
    shown.settle()
    assert shown.page.url.endswith("#heads:halved")
    sent = visit(sample_page, address="#heads:halved")
    for one in (shown, sent):
        assert one.page.locator("#candidate option:checked").inner_text() == "halved"
        assert finding(one) == "Layer 12 head 1 K loses most to clipping"
        assert one.page.locator("#before-finding").inner_text().endswith("to halved")
        assert one.page.locator("#formats tr.on a[aria-current=true]").inner_text() == "halved"
    visit(sample_page, address="#heads:%")
    assert visit(sample_page, address="#heads:%").complaints == []


@pytest.mark.parametrize("candidate", ARTIFACTS)
def test_the_candidate_switch_shows_the_numbers_of_the_json(
    visit: Open, sample_page: Path, sample_json: dict[str, Any], candidate: str
) -> None:
    shown = visit(sample_page)
    shown.page.select_option("#candidate", label=candidate)
    shown.settle()
    heads = [head for head in sample_json["heads"] if head["candidate"] == candidate]
    for head in heads[:3] + heads[-3:]:
        name = f"layer {head['layer']} head {head['kv_head']} {head['tensor'].upper()}"
        shown.page.locator(f"#heat-{head['tensor']} .mark-rect path[aria-label^='{name}:']").click(force=True)
        measured = head["measured"]
        assert shown.numbers()[head["tensor"].upper()][1:] == [
            percent(measured["clipped_frac"]),
            percent(measured["out_of_range_frac"]),
            percent(measured["vectors_out_of_range_frac"]),
            percent(measured["flushed_frac"]),
            percent(measured["clip_error_frac"]),
            decibel(measured["sqnr_db"]),
            number(head["max_abs"]),
            number(head["covered_amax"]),
        ]


def test_formats_lists_every_candidate_with_the_state_that_the_answer_gives_it(
    visit: Open, sample_page: Path, answers: dict[str, dict[str, Any]]
) -> None:
    rows = visit(sample_page).page.locator("#formats tbody tr").all_inner_texts()
    assert len(rows) == 6
    for one in answers["choice"]["compared"]:
        (row,) = [text for text in rows if text.split()[0] == one["candidate"]]
        assert one["state"] in row
        assert one["text"] in row


def test_cells_of_a_workload_with_few_requests_are_hatched(visit: Open, sample_page: Path) -> None:
    """The sample has four retrieval requests, fewer than an interval needs."""
    shown = visit(sample_page)
    hatches = "#heat-k .mark-symbol path"
    assert shown.page.locator(hatches).count() == 0
    assert shown.page.locator("[data-few]:visible").count() == 0
    shown.page.select_option("#workload", label="retrieval")
    shown.settle()
    assert shown.page.locator(hatches).count() == 30 * 3
    assert shown.page.locator("[data-few]:visible").count() == 1


def test_heads_that_lost_quality_are_listed_and_lead_to_their_head(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page, address="#heads:halved")
    shown.page.select_option("#before", label="all-per-head")
    shown.settle()
    heading = shown.page.locator("#before-finding").inner_text()
    assert heading == "180 of 180 heads lost quality from all-per-head to halved"
    button = shown.page.locator("#regressions button").first
    name = button.inner_text()
    button.click()
    shown.settle()
    assert shown.page.locator(".head [data-focus]").inner_text().lower() == name.lower()


def test_the_keyboard_alone_reaches_every_control_and_moves_on_the_map(
    visit: Open, sample_page: Path
) -> None:
    shown = visit(sample_page)
    wanted = {"theme", "candidate", "workload", "before", "heat-k", "heat-v"}
    reached = set()
    for _ in range(60):
        shown.page.keyboard.press("Tab")
        reached.add(shown.page.evaluate("document.activeElement.id"))
    assert wanted <= reached
    shown.page.locator("#heat-v").focus()
    said = shown.page.locator("#said")
    shown.page.keyboard.press("Enter")
    assert said.inner_text().startswith("layer 17 head 0 V: uses 1.0 × of its range")
    shown.page.keyboard.press("ArrowRight")
    shown.settle()
    assert said.inner_text().startswith("layer 18 head 0 V")
    shown.page.keyboard.press("ArrowDown")
    assert said.inner_text().startswith("layer 18 head 1 V")
    shown.page.keyboard.press("Escape")
    assert said.inner_text().startswith("layer 17 head 0 V")


def test_a_command_is_copied_or_else_selected_and_either_is_said_aloud(
    visit: Open, shown_pages: dict[str, Path], answers: dict[str, dict[str, Any]]
) -> None:
    command = answers["incident"]["action"]["command"]
    page = visit(shown_pages["incident"]).page
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async (text) => { window.copied = text }}})"
    )
    page.get_by_role("button", name="Copy").first.click()
    page.wait_for_function("document.getElementById('said').textContent === 'Command copied'")
    assert page.evaluate("window.copied") == command
    page = visit(shown_pages["incident"]).page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("button", name="Copy").first.click()
    page.wait_for_function("document.getElementById('said').textContent === 'Command selected'")
    assert page.evaluate("getSelection().toString()").replace("\n", "") == command


def test_without_javascript_the_answer_and_the_tables_remain(
    visit: Open, sample_page: Path, answers: dict[str, dict[str, Any]]
) -> None:
    page = visit(sample_page, script=False).page
    assert answers["choice"]["headline"] in page.locator("h1").inner_text()
    assert page.locator(".ruler svg").first.is_visible()
    assert "need JavaScript" in page.locator("#heads").inner_text()
    assert page.locator(".chart:visible, select:visible, .command button:visible").count() == 0
    page.locator("#heads > details > summary").first.click()
    assert page.locator("#heads table:visible").count() == len(ARTIFACTS)


def test_hostile_names_are_text_everywhere(visit: Open, hostile_page: Path, proxy: RefusingProxy) -> None:
    proxy.visits.clear()
    shown = visit(hostile_page)
    page = shown.page
    assert page.title().startswith("kvtrace report: </script>")
    shown.unfold()
    page.locator("#heat-k path[aria-label^='layer 0 head 0 K']").first.hover()
    assert page.locator("#tip").is_visible()
    page.locator("#clip-flush .mark-symbol path[aria-label]").first.hover(force=True)
    page.locator("#formats a").first.click()
    shown.settle()
    text = page.locator("body").inner_text()
    assert SCRIPT in text
    assert IMAGE in text
    assert "x" * 4_000 in (page.locator("body").text_content() or "")
    assert "\u202e" not in text
    assert "\\u202e" in text
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 4
    assert "owned" not in page.title().removeprefix(f"kvtrace report: {SCRIPT}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert shown.complaints == []
    assert proxy.from_page() == []
    page.screenshot(path=SCREENSHOTS / "hostile.png", full_page=True)
    assert len(LONG) > 4_000


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_an_accessibility_checker_finds_no_serious_fault(
    visit: Open, shown_pages: dict[str, Path], name: str, theme: str
) -> None:
    shown = visit(shown_pages[name], theme=theme)
    found = Axe().run(shown.page).response["violations"]
    grave = [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical") or one["id"] == "heading-order"
    ]
    assert grave == []
    assert shown.page.locator("h1").count() == 1


def test_words_that_blame_or_shout_stand_nowhere(visit: Open, shown_pages: dict[str, Path]) -> None:
    """But in SQL, whose names are those of columns."""
    for file in shown_pages.values():
        page = visit(file).page
        page.evaluate("for (const one of document.querySelectorAll('pre, script, style')) one.remove()")
        text = page.locator("body").text_content() or ""
        assert re.findall(r"\b[Ww]orst\b|CLIPS|nothing above", text) == []
