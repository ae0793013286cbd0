"""A real browser without a network, and the pages that it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from support.browser_visit import ARTIFACTS, FLAGS, SAMPLE, RefusingProxy, Visit, kvtrace, rendered
from support.hostile_run import hostile_run
from support.large_run import large_run

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def proxy() -> Iterator[RefusingProxy]:
    proxy = RefusingProxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def browser(proxy: RefusingProxy) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=FLAGS, proxy={"server": proxy.address}
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function that opens a page: visit(file, width=, theme=)."""
    contexts = []

    def open_page(file: Path, width: int = 1280, theme: str = "light") -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        return Visit(context.new_page(), file).open()

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def sample_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sample") / "sample.run"
    scales = [word for name in ARTIFACTS for word in ("--scales", f"samples/scales/{name}")]
    kvtrace("replay", SAMPLE, *scales, "-o", str(run))
    return run


@pytest.fixture(scope="session")
def sample_page(sample_run: Path) -> Path:
    return rendered(sample_run)


@pytest.fixture(scope="session")
def sample_json(sample_run: Path) -> dict[str, Any]:
    return json.loads(kvtrace("report", str(sample_run), "--json", "--top", "200"))


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rendered(hostile_run(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rendered(large_run(tmp_path_factory.mktemp("large") / "large.run"))
