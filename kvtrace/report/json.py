"""The report for programs: JSON with a published schema (`docs/report.schema.json`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.report.sections import Report


def report_json(report: Report) -> str:
    """Return the report as JSON; what was not measured is null."""
    return report.model_dump_json(indent=1) + "\n"
