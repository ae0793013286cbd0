"""The page of a decision in a real browser: what it says, that it fits, prints and keeps to itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from support.browser_visit import SCREENSHOTS, RefusingProxy
from support.decide_files import BF16, FP8, POLICY, Case, check_outcome, metrics_page
from support.hostile_run import SCRIPT
from support.run_cli import kvtrace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.browser_visit import Visit

    Open = Callable[..., Visit]

METRICS = {
    BF16: metrics_page("auto", blocks=1638, tokens=26_112, kv_cache_usage_perc=1.0),
    FP8: metrics_page("fp8", blocks=3276, tokens=52_352, kv_cache_usage_perc=0.97),
}
CASES: dict[str, dict[str, Any]] = {
    "promote": {"limit": 80, "metrics": METRICS},
    "roll-back": {"losses": 60, "check": check_outcome("clipped_frac"), "limit": 80, "metrics": METRICS},
    "retain": {"slow": {BF16: (8, 9, 10), FP8: (9, 8, 10)}},
    "collect": {"leave_out": ("quality", "capacity"), "fields": {FP8: {"accepted": None}}},
    "invalid": {"load": "closed"},
}


class Shown:
    """A decision as JSON, as text, and the file of its page."""

    def __init__(self, name: str, folder: Path) -> None:
        self.page = folder / f"decision-{name}.html"
        arguments = Case(folder, **CASES[name]).files()
        self.json: dict[str, Any] = json.loads(kvtrace(*arguments, "--json", "--page", self.page).stdout)
        self.text = kvtrace(*arguments).stdout


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    return {name: Shown(name, tmp_path_factory.mktemp(name)) for name in CASES}


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", CASES)
def test_the_page_fits_its_window_light_dark_printed_and_without_script(
    visit: Open, decisions: dict[str, Shown], name: str, width: int
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for kind in ("light", "dark", "print", "noscript"):
        theme = "dark" if kind == "dark" else "light"
        page = visit(decisions[name].page, width, theme, script=kind != "noscript").page
        if kind == "print":
            page.emulate_media(media="print")
        if kind != "noscript":
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=SCREENSHOTS / f"decision-{name}-{kind}-{width}.png", full_page=True)


@pytest.mark.parametrize("name", CASES)
def test_the_decision_and_its_three_answers_stand_on_the_first_screen(
    visit: Open, decisions: dict[str, Shown], name: str
) -> None:
    page = visit(decisions[name].page).page
    asks = page.locator(".asks").bounding_box()
    assert asks is not None
    assert asks["y"] + asks["height"] <= 800
    assert decisions[name].json["word"] in page.locator("h1 .word").inner_text().lower()


@pytest.mark.parametrize("name", CASES)
def test_the_page_says_each_reason_and_each_lack_of_the_json_and_every_line_of_the_text(
    visit: Open, decisions: dict[str, Shown], name: str
) -> None:
    shown = decisions[name]
    page = visit(shown.page).page
    said = words_of(page.locator("main").text_content() or "")
    for reason in shown.json["reasons"]:
        assert words_of(reason["text"]) in said
    for what in shown.json["not_measured"]:
        assert what.partition(": ")[2] in said
    for one in shown.json["evidence"]:
        assert one["sha256"] in said
    headline = words_of(shown.text).split("  ")[0]
    assert words_of(page.locator("h1").inner_text()).lower().split(" · ")[0][2:] in headline.lower()


def test_the_forest_and_the_bars_have_the_numbers_of_the_json(
    visit: Open, decisions: dict[str, Shown]
) -> None:
    shown = decisions["roll-back"]
    page = visit(shown.page).page
    rows = page.locator("#answers-lost tbody tr")
    assert rows.count() == 1 + len(shown.json["quality"])
    assert rows.first.inner_text().startswith("bf16-a twice: the noise\t600\t0\t0")
    # 60 of 600 pairs are lost: 10 points, far beyond the margin of 2
    assert rows.last.locator("td").all_text_contents()[:3] == ["600", "60", "0"]
    assert "+10\t+7.63 to +12.8" in rows.last.inner_text()
    assert "✕ breached" in rows.last.inner_text()
    margin, mark = (
        float((rows.last.locator(where).first.get_attribute("x1") or "").rstrip("%"))
        for where in ("line.edge", "line.ends")
    )
    assert margin < mark
    # three runs of 40: 12 + 13 + 14 are late before, 6 + 7 + 8 now
    before, after = page.locator("#useful-goodput svg[role=img][aria-label^='all,']").all()
    assert before.get_attribute("aria-label") == "all, bf16-a: 81 accepted, 39 late"
    assert after.get_attribute("aria-label") == "all, fp8: 99 accepted, 21 late"
    assert before.locator("rect.o1").get_attribute("width") == "67.5%"
    assert "set --max-num-seqs 51 (now 80)" in page.locator("#room").inner_text()
    assert "clipped_frac" in page.locator("#clips").inner_text()


def test_what_was_not_measured_is_no_zero(visit: Open, decisions: dict[str, Shown]) -> None:
    page = visit(decisions["collect"].page).page
    assert page.locator("#answers-lost table, #clips, #harm").count() == 0
    assert page.locator(".asks .a").all_inner_texts()[0] == "– not measured"
    bar = page.locator("#useful-goodput svg[aria-label^='all, fp8']")
    assert bar.get_attribute("aria-label") == "all, fp8: 120 unjudged"
    # 99 of three runs of 10 s may be right, or none
    assert "0 to 3.3" in page.locator("#useful-goodput tbody").first.inner_text()
    invalid = visit(decisions["invalid"].page).page
    assert "not measured" in invalid.locator("#useful-goodput tbody").first.inner_text()
    assert "closed loop" in invalid.locator("#evidence").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", CASES)
def test_an_accessibility_checker_finds_no_serious_fault(
    visit: Open, decisions: dict[str, Shown], name: str, theme: str
) -> None:
    page = visit(decisions[name].page, theme=theme).page
    found = Axe().run(page).response["violations"]
    grave = [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical") or one["id"] == "heading-order"
    ]
    assert grave == []
    assert page.locator("h1").count() == 1


def test_the_page_asks_for_nothing_and_hostile_names_are_text(
    visit: Open, tmp_path: Path, proxy: RefusingProxy
) -> None:
    case = Case(tmp_path, losses=60, policy=POLICY.replace('name = "chat"', f"name = {json.dumps(SCRIPT)}"))
    arguments = case.files()
    quality = tmp_path / "quality.json"
    record = json.loads(quality.read_text())
    for one in record["variants"][0]["segments"]:
        one |= {"segment": SCRIPT, "reason": f"{SCRIPT}\u202e"}
    quality.write_text(json.dumps(record))
    proxy.visits.clear()
    result = kvtrace(*arguments, "--page", tmp_path / "hostile.html")
    assert result.returncode == 1, result.stderr
    shown = visit(tmp_path / "hostile.html")
    assert SCRIPT in shown.page.locator("#answers-lost").inner_text()
    assert "\u202e" not in (shown.page.locator("body").text_content() or "")
    assert shown.page.locator("script").count() == 1
    assert [url for url in shown.requests if not url.startswith(("file:", "data:"))] == []
    assert shown.complaints == []
    assert proxy.from_page() == []
