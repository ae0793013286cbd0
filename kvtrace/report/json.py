"""The report for programs: JSON with a published schema (`docs/report.schema.json`)."""

from __future__ import annotations

from pydantic import TypeAdapter

from kvtrace.report.sections import Report


def report_json(report: Report) -> str:
    """Return the report as JSON; what was not measured is null."""
    return TypeAdapter(Report).dump_json(report, indent=1).decode() + "\n"
