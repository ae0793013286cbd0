"""A page in a browser without a network: what it asks for, what it complains of, what it shows."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from support import run_cli

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "browser"
BROWSERS_OWN = (b".google.com:443 ", b".googleapis.com:443 ", b".gstatic.com:443 ")
SAMPLE = "samples/smollm2-135m.kvtrace"
WITH_QUERIES = "samples/smollm2-135m-queries.kvtrace"
FORMATS = ("int8_per_token_head", "turboquant_k8v4", "int4_per_token_head")
ARTIFACTS = ("chat-per-tensor", "chat-per-head", "all-per-head", "halved")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-default-apps",
    "--disable-extensions",
    "--metrics-recording-only",
    "--no-pings",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
]


def kvtrace(*words: str) -> str:
    # From there, so that the README's picture shows no path of the machine that made it.
    with contextlib.chdir(ROOT):
        result = run_cli.kvtrace(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rendered(*runs: Path) -> Path:
    page = runs[0].with_suffix(".html") if len(runs) == 1 else runs[0].with_name("before-after.html")
    kvtrace("report", *map(str, runs), "--format", "html", "-o", str(page))
    return page


class RefusingProxy:
    """Listens where a proxy would, notes who comes, and closes the door."""

    def __init__(self) -> None:
        self.visits: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._refuse, daemon=True).start()

    def _refuse(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                self.visits.append(connection.recv(400))

    def from_page(self) -> list[bytes]:
        """Return the visits that a page can have caused.

        Chromium asks its maker's hosts on its own account now and then, whatever the flags; no page here
        names these (a test looks).
        """
        return [visit for visit in self.visits if not any(host in visit for host in BROWSERS_OWN)]

    def close(self) -> None:
        self._server.close()


@dataclass
class Visit:
    """A page in a tab, with everything it asked for and complained about."""

    page: Page
    file: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str = "") -> Visit:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.goto(self.file.as_uri() + address)
        if self.page.locator(".chart:visible").count():
            self.settle()
        return self

    def settle(self) -> None:
        """Wait until every chart is drawn."""
        self.page.wait_for_selector("html[data-drawn=all]", state="attached", timeout=60_000)
        self.page.wait_for_timeout(300)

    def unfold(self) -> None:
        """Open all details and wait for the charts in them."""
        self.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        self.page.wait_for_timeout(300)
        self.settle()

    def numbers(self) -> dict[str, list[str]]:
        """Return the chosen head's row of K and of V, as shown."""
        rows = self.page.locator("#numbers tr")
        return {row.get_attribute("data-tensor"): row.locator("td").all_text_contents() for row in rows.all()}
