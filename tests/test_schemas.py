"""The published schemas are those of the code."""

from __future__ import annotations

import json
from pathlib import Path

from kvtrace.schemas import published_schemas

DOCS = Path(__file__).parents[1] / "docs"


def test_the_published_schemas_are_current() -> None:
    published = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.schema.json")}
    assert published == published_schemas(), "python -m kvtrace.schemas docs"


def test_a_schema_describes_its_fields() -> None:
    report = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
    clipped = report["$defs"]["Measured"]["properties"]["num_clipped"]
    assert clipped["description"].startswith("Values beyond the point")
