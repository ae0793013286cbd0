"""A real browser without a network, and the pages that it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from incidents.bench import new_bench, times
from playwright.sync_api import Browser, sync_playwright
from support.browser_visit import (
    ARTIFACTS,
    FLAGS,
    FORMATS,
    SAMPLE,
    WITH_QUERIES,
    RefusingProxy,
    Visit,
    kvtrace,
    rendered,
)
from support.examples import run_of
from support.hostile_run import hostile_run
from support.large_run import large_run

from kvtrace.calibration.recipe import Recipe
from kvtrace.findings.run.example import RunExample

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
    """A function that opens a page: visit(file, width=, theme=, script=, address=)."""
    contexts = []

    def open_page(
        file: Path, width: int = 1280, theme: str = "light", *, script: bool = True, address: str = ""
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=theme, java_script_enabled=script
        )
        contexts.append(context)
        return Visit(context.new_page(), file).open(address)

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
def sample_page(shown_pages: dict[str, Path]) -> Path:
    return shown_pages["choice"]


@pytest.fixture(scope="session")
def sample_json(sample_run: Path) -> dict[str, Any]:
    return json.loads(kvtrace("report", str(sample_run), "--json", "--top", "200"))


@pytest.fixture(scope="session")
def harm_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo: scales and formats by what they do to attention."""
    run = tmp_path_factory.mktemp("harm") / "harm.run"
    scales = [word for name in ("all-per-head", "halved") for word in ("--scales", f"samples/scales/{name}")]
    formats = [word for name in FORMATS for word in ("--cache-dtype", name)]
    kvtrace("replay", WITH_QUERIES, *scales, *formats, "-o", str(run))
    return run


@pytest.fixture(scope="session")
def harm_json(harm_run: Path) -> dict[str, Any]:
    return json.loads(kvtrace("report", str(harm_run), "--json"))


@pytest.fixture(scope="session")
def incident_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the sample as served in FP8 with scales that are too small for K of three heads."""
    return served_run("incident", tmp_path_factory, {1 / 4: [(2, 1)], 1 / 2.5: [(0, 0), (3, 2)]})


def served_run(
    name: str, folders: pytest.TempPathFactory, factors: dict[float, list[tuple[int, int]]]
) -> Path:
    """Part of the sample as served in FP8; factors: of scales that cover, to the K heads that get it."""
    bench = new_bench(3, folders.mktemp(name))
    live = bench.scales(Recipe(headroom=1.1))
    for factor, heads in factors.items():
        live = times(live, factor, "k", heads)
    bench.live = live
    bench.ship(live)
    run = bench.folder / f"{name}.run"
    kvtrace("replay", str(bench.write(name)), "--scales", str(bench.artifacts[0]), "-o", str(run))
    return run


@pytest.fixture(scope="session")
def shown_runs(
    sample_run: Path, harm_run: Path, incident_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, ...]]:
    """A choice, one by harm, an incident as served, sound scales, unusable ones; before and after a fault."""
    invalid = tmp_path_factory.mktemp("invalid") / "invalid.run"
    run_of(RunExample(invalid_as="wrong-model"), invalid)
    sound = tmp_path_factory.mktemp("sound") / "sound.run"
    kvtrace("replay", SAMPLE, "--scales", "samples/scales/all-per-head", "-o", str(sound))
    before = served_run("earlier", tmp_path_factory, {1 / 3: [(1, 1)]})
    return {
        "choice": (sample_run,),
        "harm": (harm_run,),
        "incident": (incident_run,),
        "sound": (sound,),
        "invalid": (invalid,),
        "before-after": (before, incident_run),
    }


@pytest.fixture(scope="session")
def shown_pages(shown_runs: dict[str, tuple[Path, ...]]) -> dict[str, Path]:
    return {name: rendered(*runs) for name, runs in shown_runs.items()}


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rendered(hostile_run(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rendered(large_run(tmp_path_factory.mktemp("large") / "large.run"))
