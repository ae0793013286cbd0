"""The published JSON schemas, of what the commands print and of the manifest beside scales.

Write them anew with `python -m kvtrace.schemas docs`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from kvtrace.calibration.manifest import Manifest
from kvtrace.capacity.report import CapacityReport
from kvtrace.decide.decision import Decision
from kvtrace.gate.comparison import Comparison
from kvtrace.gate.outcome import CheckOutcome
from kvtrace.mend.model import Mended
from kvtrace.quality.comparison import QualityComparison
from kvtrace.quality.tied import QualityTie
from kvtrace.report.before_after.model import BeforeAfter
from kvtrace.report.harm.plan import LayerPlan
from kvtrace.report.scales.model import ScalesReport
from kvtrace.report.sections import Report
from kvtrace.serving.report import GoodputReport

_PUBLISHED: Final[dict[str, Any]] = {
    "before-after.schema.json": BeforeAfter,
    "calibration-manifest.schema.json": Manifest,
    "capacity.schema.json": CapacityReport,
    "check.schema.json": CheckOutcome,
    "compare.schema.json": Comparison,
    "decide.schema.json": Decision,
    "goodput.schema.json": GoodputReport,
    "mend.schema.json": Mended,
    "plan.schema.json": LayerPlan,
    "quality.schema.json": QualityComparison,
    "quality-tie.schema.json": QualityTie,
    "report.schema.json": Report,
    "scales.schema.json": ScalesReport,
}


def published_schemas() -> dict[str, str]:
    """Return file name → content."""
    return {
        name: json.dumps(TypeAdapter(kind).json_schema(mode="serialization"), indent=1, ensure_ascii=False)
        + "\n"
        for name, kind in _PUBLISHED.items()
    }


if __name__ == "__main__":
    for file_name, content in published_schemas().items():
        Path(sys.argv[1], file_name).write_text(content, encoding="utf-8")
