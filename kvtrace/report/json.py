"""The report for programs: JSON with a published schema (`docs/report.schema.json`)."""

from __future__ import annotations

import json
from functools import cache

from pydantic import TypeAdapter

from kvtrace.report.sections import Report


def report_json(report: Report) -> str:
    """Return the report as JSON; what was not measured is null."""
    return _adapter().dump_json(report, indent=1).decode() + "\n"


def read_report(text: str) -> Report:
    """Return the report of its JSON. Raises pydantic.ValidationError: it does not fit the schema."""
    return _adapter().validate_json(text)


def report_schema() -> str:
    """Return the JSON schema of a report, as published."""
    return json.dumps(_adapter().json_schema(mode="serialization"), indent=1, ensure_ascii=False) + "\n"


@cache
def _adapter() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


if __name__ == "__main__":
    import sys

    sys.stdout.write(report_schema())
