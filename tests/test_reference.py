"""The reference pages are those of the code, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

from kvtrace.reference import reference_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_reference_pages_are_current() -> None:
    made = reference_pages()
    assert {name: (DOCS / name).read_text(encoding="utf-8") for name in made} == made, (
        "python -m kvtrace.reference docs"
    )


def test_the_index_names_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\]\(([a-z-]+\.md)\)", index))


def test_no_link_between_pages_is_broken() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "capture" / "README.md"]
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken
