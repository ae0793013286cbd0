"""The README's table of cache formats is what the bundled sample gives."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_readme_is_what_its_script_prints() -> None:
    made = runpy.run_path(str(ROOT / "samples" / "formats_table.py"))["table"]()
    assert made in (ROOT / "README.md").read_text(encoding="utf-8")
