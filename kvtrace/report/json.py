"""The report for programs: JSON with a published schema (`docs/report.schema.json`)."""

from __future__ import annotations

from functools import cache

from pydantic import TypeAdapter

from kvtrace.report.sections import Report


def report_json(report: Report) -> str:
    """Return the report as JSON; what was not measured is null."""
    return _adapter().dump_json(report, indent=1).decode() + "\n"


def read_report(text: str) -> Report:
    """Return the report of its JSON. Raises pydantic.ValidationError: it does not fit the schema."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[Report]:
    return TypeAdapter(Report)
