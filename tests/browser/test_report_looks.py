"""How the page looks: it fits, prints, and the first screen holds the answer; pictures in build/browser."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from support.browser_visit import SCREENSHOTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.browser_visit import Visit

    Open = Callable[..., Visit]

SHOWN = ("choice", "harm", "incident", "sound", "invalid", "before-after")
WIDTHS = (1280, 390)


def pictured(shown: Visit, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    shown.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def background(shown: Visit) -> str:
    return str(shown.page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_the_page_fits_its_window_light_dark_printed_and_without_script(
    visit: Open, shown_pages: dict[str, Path], name: str, width: int
) -> None:
    for kind in ("light", "dark", "print", "noscript"):
        shown = visit(
            shown_pages[name], width, "dark" if kind == "dark" else "light", script=kind != "noscript"
        )
        if kind == "print":
            shown.page.emulate_media(media="print")
            shown.page.wait_for_timeout(1000)
        if kind != "noscript":
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
        assert (background(shown) == "rgb(255, 255, 255)") == (kind != "dark")
        pictured(shown, f"{name}-{kind}-{width}")


@pytest.mark.parametrize("name", SHOWN)
def test_the_answer_stands_on_the_first_screen_and_its_sections_beside_it(
    visit: Open, shown_pages: dict[str, Path], name: str
) -> None:
    page = visit(shown_pages[name]).page
    asks = page.locator(".asks").bounding_box()
    assert asks is not None
    assert asks["y"] + asks["height"] <= 800
    assert page.locator(".rail").is_visible()
    assert not page.locator(".toc").is_visible()
    narrow = visit(shown_pages[name], 390).page
    assert not narrow.locator(".rail").is_visible()
    assert narrow.locator(".toc").is_visible()


def test_harm_against_bytes_stands_on_the_first_screen_with_a_mark_for_every_candidate(
    visit: Open, shown_pages: dict[str, Path], harm_json: dict[str, Any]
) -> None:
    page = visit(shown_pages["harm"]).page
    figure = page.locator("#answer figure")
    assert figure.count() == 1
    box = figure.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800
    harm = harm_json["harm"]
    assert figure.locator("circle").count() == len(harm["candidates"]) == 8
    said = figure.locator("svg[role=img]").get_attribute("aria-label")
    assert all(one["candidate"] in said for one in harm["candidates"])
    assert figure.locator("circle.sound").count() == len(harm["front"])
    assert page.locator("#harm figure").first.is_visible()  # range used, and bars by layer


def test_the_samples_page_is_short_while_its_details_are_closed(visit: Open, sample_page: Path) -> None:
    words = visit(sample_page).page.locator("body").inner_text().split()
    print(f"\n{len(words)} words")
    assert len(words) <= 1200
    assert sample_page.stat().st_size < 2_000_000


def test_a_print_is_light_and_complete(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page, theme="dark")
    shown.page.emulate_media(media="print", color_scheme="dark")
    shown.settle()
    assert background(shown) == "rgb(255, 255, 255)"
    assert shown.page.locator(".controls:visible, .rail:visible, .command button:visible").count() == 0
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    pdf = shown.page.pdf(format="A4")
    (SCREENSHOTS / "report.pdf").write_bytes(pdf)
    assert len(pdf) > 50_000


def test_the_first_screens_are_pictured_for_the_readme(visit: Open, sample_page: Path) -> None:
    shown = visit(sample_page, width=1100)
    end = shown.page.locator(".head").bounding_box()
    assert end is not None
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    area = {"x": 0, "y": 0, "width": 1100, "height": end["y"] - 4}
    picture = shown.page.screenshot(path=SCREENSHOTS / "readme.png", full_page=True, clip=area)
    assert len(picture) < 400_000


def seconds_to_first_chart(shown: Visit) -> float:
    start = time.monotonic()
    shown.page.reload()
    shown.page.wait_for_selector("#heat-k[data-drawn]", timeout=60_000)
    return time.monotonic() - start


def test_a_large_report_is_small_fast_and_scrolls(visit: Open, large_page: Path) -> None:
    assert large_page.stat().st_size < 10_000_000
    shown = visit(large_page)
    page = shown.page
    assert page.locator("#heat-k .mark-rect path[aria-label^='layer']").count() == 80 * 8
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
        f"scrolling: median {frames[len(frames) // 2]:.0f} ms, slowest {frames[-1]:.0f} ms a step"
    )
    page.screenshot(path=SCREENSHOTS / "large.png", full_page=True)
    assert first_chart < 30  # a hang, not a speed: that is the bench's
    assert frames[len(frames) // 2] < 100
