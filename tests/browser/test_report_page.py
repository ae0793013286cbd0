"""The HTML report in a real browser: what it shows, that it answers, and that it keeps to itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from support.browser_visit import SCREENSHOTS, RefusingProxy
from support.hostile_run import IMAGE, LONG, SCRIPT

from kvtrace.figures import decibel, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.browser_visit import Visit

    Open = Callable[..., Visit]


def marks(shown: Visit, tensor: str) -> int:
    return shown.page.locator(f"#heat-{tensor} .mark-rect path[aria-label^='layer']").count()


def seconds_to_first_chart(shown: Visit) -> float:
    start = time.monotonic()
    shown.page.reload()
    shown.page.wait_for_selector("#heat-k[data-drawn]", timeout=60_000)
    return time.monotonic() - start


def test_the_page_asks_for_nothing_and_complains_of_nothing(
    visit: Open, sample_page: Path, proxy: RefusingProxy
) -> None:
    proxy.visits.clear()
    shown = visit(sample_page)
    shown.page.select_option("#candidate", label="halved")
    shown.page.select_option("#measure", "sqnr_db")
    shown.settle()
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


def test_the_heat_map_has_a_mark_for_every_layer_and_head(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    assert marks(shown, "k") == 30 * 3
    assert marks(shown, "v") == 30 * 3


def test_a_click_on_a_cell_filters_the_other_charts(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    assert "all heads" in shown.page.locator("#position").inner_text()
    before = shown.page.locator("#position-sqnr .mark-symbol path").count()
    curve = shown.page.locator("#clip-flush .mark-line path").first.get_attribute("d")
    shown.page.locator("#heat-k path[aria-label^='layer 18 head 2 K']").click()
    shown.settle()
    assert "layer 18 head 2 K" in shown.page.locator("#position").inner_text()
    assert "layer 18 head 2 K" in shown.page.locator("#bands-title").inner_text()
    assert shown.page.locator("#position-sqnr .mark-symbol path").count() == before / 2
    assert shown.page.locator("#clip-flush .mark-line path").first.get_attribute("d") != curve
    assert (
        "--param layer=18 --param kv_head=2" in shown.page.locator("[data-query=absmax_bands]").text_content()
    )


def test_the_verdict_and_the_findings_are_those_of_the_json(
    visit: Open, sample_page: Path, sample_json: dict[str, Any]
) -> None:
    shown = visit(sample_page)
    assert sample_json["verdict"]["headline"] in shown.page.locator(".box").inner_text()
    ids = shown.page.locator(".findings > li > p:first-child > b").all_text_contents()
    assert sorted(ids) == sorted(finding["id"] for finding in sample_json["findings"])
    chosen = shown.page.locator("#candidate option:checked").inner_text()
    assert chosen == sample_json["verdict"]["subject"]


@pytest.mark.parametrize("candidate", ["chat-per-tensor", "chat-per-head", "all-per-head", "halved", "unit"])
def test_the_candidate_switch_shows_the_numbers_of_the_json(
    visit: Open, sample_page: Path, sample_json: dict[str, Any], candidate: str
) -> None:
    shown = visit(sample_page)
    shown.page.select_option("#candidate", label=candidate)
    shown.settle()
    heads = [head for head in sample_json["heads"] if head["candidate"] == candidate]
    for head in heads[:3] + heads[-3:]:
        shown.page.select_option("#layer", str(head["layer"]))
        shown.page.select_option("#kv-head", str(head["kv_head"]))
        measured = head["measured"]
        assert shown.numbers()[head["tensor"].upper()] == [
            percent(measured["clipped_frac"]),
            percent(measured["out_of_range_frac"]),
            percent(measured["vectors_out_of_range_frac"]),
            percent(measured["flushed_frac"]),
            percent(measured["clip_error_frac"]),
            decibel(measured["sqnr_db"]),
            number(head["max_abs"]),
            number(head["covered_amax"]),
        ]


def test_the_tensor_switch_leaves_one_map(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    shown.page.get_by_label("V", exact=True).check()
    shown.settle()
    assert not shown.page.locator("#heat-k").is_visible()
    assert shown.page.locator("#heat-v").is_visible()
    shown.page.get_by_label("K", exact=True).check()
    shown.settle()
    assert shown.page.locator("#heat-k").is_visible()
    assert not shown.page.locator("#heat-v").is_visible()


def test_cells_of_a_workload_with_few_requests_are_hatched(visit: Open, sample_page: Path) -> None:
    """The sample has four retrieval requests, fewer than an interval needs."""
    shown = visit(sample_page)
    hatches = "#heat-k .mark-symbol path"
    assert shown.page.locator(hatches).count() == 0
    assert not shown.page.locator("#few").is_visible()
    shown.page.select_option("#workload", label="retrieval")
    shown.settle()
    assert shown.page.locator(hatches).count() == 30 * 3
    assert shown.page.locator("#few").is_visible()


def test_regressions_are_listed_and_lead_to_their_head(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page)
    shown.page.select_option("#before", label="all-per-head")
    shown.page.select_option("#candidate", label="halved")
    shown.settle()
    assert shown.page.locator("#regressions-count").inner_text().startswith("180 of 180 heads worse")
    shown.page.locator("#regressions button").first.click()
    shown.settle()
    assert shown.page.locator("#layer").input_value() == "11"


def test_the_keyboard_alone_reaches_every_control_and_moves_on_the_map(
    visit: Open, sample_page: Path
) -> None:
    shown = visit(sample_page)
    wanted = {
        "theme",
        "candidate",
        "measure",
        "workload",
        "layer",
        "kv-head",
        "worst-head",
        "all-heads",
        "before",
    }
    wanted |= {"heat-k", "heat-v", "tensors"}
    reached = set()
    for _ in range(120):
        shown.page.keyboard.press("Tab")
        reached.add(shown.page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert wanted <= reached
    shown.page.locator("#heat-k").focus()
    shown.page.keyboard.press("Enter")
    first = shown.page.locator("#announced").inner_text()
    shown.page.keyboard.press("ArrowRight")
    shown.settle()
    assert first.startswith("layer 11 head 0 K")
    assert shown.page.locator("#announced").inner_text().startswith("layer 12 head 0 K")
    shown.page.keyboard.press("ArrowDown")
    assert shown.page.locator("#announced").inner_text().startswith("layer 12 head 1 K")
    shown.page.keyboard.press("Escape")
    assert shown.page.locator("#announced").inner_text() == "All heads"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_accessibility_checker_finds_no_serious_fault(visit: Open, sample_page: Path, theme: str) -> None:
    shown = visit(sample_page, theme=theme)
    found = Axe().run(shown.page).response["violations"]
    grave = [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert grave == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window_and_is_pictured(
    visit: Open, sample_page: Path, theme: str, width: int
) -> None:
    shown = visit(sample_page, width=width, theme=theme)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    shown.page.screenshot(path=SCREENSHOTS / f"report-{theme}-{width}.png", full_page=True)
    background = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (theme == "light")


def test_the_first_screens_are_pictured_for_the_readme(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page, width=1100)
    end = shown.page.locator("#numbers").bounding_box()
    assert end is not None
    area = {"x": 0, "y": 0, "width": 1100, "height": end["y"] + end["height"] + 24}
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    picture = shown.page.screenshot(path=SCREENSHOTS / "readme.png", full_page=True, clip=area)
    assert len(picture) < 400_000


def test_a_print_is_light_and_complete(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page, theme="dark")
    shown.page.emulate_media(media="print", color_scheme="dark")
    shown.settle()
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.page.locator(".controls").is_visible()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    pdf = shown.page.pdf(format="A4")
    (SCREENSHOTS / "report.pdf").write_bytes(pdf)
    assert len(pdf) > 50_000


def test_hostile_names_are_text_everywhere(visit: Open, hostile_page: Path, proxy: RefusingProxy) -> None:
    proxy.visits.clear()
    shown = visit(hostile_page)
    page = shown.page
    assert page.title().startswith("kvtrace report: </script>")
    for measure in ("out_of_range_frac", "sqnr_db"):
        page.select_option("#measure", measure)
        shown.settle()
    page.locator("#heat-k path[aria-label^='layer 0 head 0 K']").first.hover()
    assert page.locator("#tip").is_visible()
    page.locator("#clip-flush .mark-symbol path[aria-label]").first.hover(force=True)
    text = page.locator("body").inner_text()
    assert SCRIPT in text
    assert IMAGE in text
    assert "x" * 10_000 in page.locator("body").text_content()
    assert "\u202e" not in text
    assert "\\u202e" in text
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert "owned" not in page.title().removeprefix(f"kvtrace report: {SCRIPT}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert shown.complaints == []
    assert proxy.from_page() == []
    page.screenshot(path=SCREENSHOTS / "hostile.png", full_page=True)
    assert len(LONG) > 10_000


def test_a_large_report_is_small_fast_and_scrolls(visit: Open, large_page: Path) -> None:
    assert large_page.stat().st_size < 10_000_000
    shown = visit(large_page)
    assert marks(shown, "k") == 80 * 8
    page = shown.page
    first_chart = min(seconds_to_first_chart(shown) for _ in range(3))
    shown.settle()
    frames = page.evaluate(
        """async () => {
          const gaps = [];
          let last = performance.now();
          for (let y = 0; y < document.body.scrollHeight; y += 300) {
            scrollTo(0, y);
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            gaps.push(now - last);
            last = now;
          }
          return gaps.sort((a, b) => a - b);
        }"""
    )
    print(
        f"\n{large_page.stat().st_size / 1e6:.2f} MB, first chart {first_chart:.2f} s, "
        f"scrolling: median {frames[len(frames) // 2]:.0f} ms, worst {frames[-1]:.0f} ms a step"
    )
    page.screenshot(path=SCREENSHOTS / "large.png", full_page=True)
    assert first_chart < 30  # a hang, not a speed: that is the bench's
    assert frames[len(frames) // 2] < 100
