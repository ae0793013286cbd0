"""The report people look at: one HTML file that opens anywhere, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.query import find_query
from kvtrace.report.html.page import page_document
from kvtrace.report.html.sections import sections
from kvtrace.report.html.tables import QUERIES, chart_data
from kvtrace.report.html.vega import vega_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run

_TEMPLATES: Final = Path(__file__).with_name("templates")
_CHART_SCRIPTS: Final = ("arrays", "wording", "state", "rows", "charts", "tables", "controls")


def report_html(report: Report, run: Run) -> str:
    """Return the page: data, scripts, styles and all, under a policy that forbids every outside source.

    Raises QueryError: a file of the run cannot be read to its end.
    """
    data = chart_data(run, report)
    page = page_document(report, data)
    shown = sections(report, data, page, run.record.manifest)
    charts = (vega_script(), _joined(*_CHART_SCRIPTS)) if shown["has_heads"] else ()
    return rendered_page(
        "report.html.j2",
        charts,
        **shown,
        page=page,
        page_json=_json(page),
        queries={name: find_query(name).sql for name in (*QUERIES, "rank_heads", "harm", "harm_by_layer")},
    )


def rendered_page(template: str, scripts: Sequence[str] = (), **shown: Any) -> str:
    """Return a page of `templates/` with its styles, what every page does, and scripts of its own.

    shown: what the template prints; `page_json`, where given, is JSON that `_json` made.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    css = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    every = (_joined("page"), *scripts)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    if "page_json" in shown:
        shown["page_json"] = Markup(shown["page_json"])  # noqa: S704 -- every < is an escape in it
    return environment.get_template(template).render(
        **shown,
        css=Markup(css),  # noqa: S704 -- our own files
        scripts=[Markup(script) for script in every],  # noqa: S704
        policy=_policy(css, *every),
    )


def _joined(*names: str) -> str:
    """Return scripts as one whose names are its own."""
    texts = [(_TEMPLATES / f"{name}.js").read_text(encoding="utf-8") for name in names]
    return "(function () {\n" + "\n".join(texts) + "\n})();\n"


def _policy(css: str, *scripts: str) -> str:
    hashes = " ".join(f"'{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src '{_hash(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(page: dict[str, object]) -> str:
    text = json.dumps(page, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
