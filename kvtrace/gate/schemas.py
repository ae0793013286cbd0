"""The published JSON schemas of `kvtrace check --json` and `kvtrace compare --json`.

Write them anew with `python -m kvtrace.gate.schemas docs`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.gate.comparison import Comparison
from kvtrace.gate.outcome import CheckOutcome

if TYPE_CHECKING:
    from pydantic import BaseModel


def published_schemas() -> dict[str, str]:
    """Return file name → content."""
    models: dict[str, type[BaseModel]] = {
        "check.schema.json": CheckOutcome,
        "compare.schema.json": Comparison,
    }
    return {
        name: json.dumps(model.model_json_schema(mode="serialization"), indent=1, ensure_ascii=False) + "\n"
        for name, model in models.items()
    }


if __name__ == "__main__":
    for file_name, content in published_schemas().items():
        Path(sys.argv[1], file_name).write_text(content, encoding="utf-8")
