"""Reports for programs: JSON with published schemas, `report` and `before-after` of `docs/*.schema.json`."""

from __future__ import annotations

from pydantic import TypeAdapter

from kvtrace.report.before_after.model import BeforeAfter
from kvtrace.report.sections import Report


def report_json(report: Report) -> str:
    """Return the report as JSON; what was not measured is null."""
    return TypeAdapter(Report).dump_json(report, indent=1).decode() + "\n"


def before_after_json(told: BeforeAfter) -> str:
    """Return the report on two deployments as JSON; what was not measured is null."""
    return TypeAdapter(BeforeAfter).dump_json(told, indent=1).decode() + "\n"
