"""What findings, gates and errors can print is plain English: short sentences, and no words for insiders."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGES = ("kvtrace", "capture/kvtrace_capture")
MOST_WORDS = 25
SAID_BY = ("message", "action", "headline", "what_if", "note", "reason", "text")
"""Keywords whose texts a reader meets."""
ENDS = re.compile(r"[.;:?!](?=\s|$)")
"""A semicolon or a colon gives the breath that a full stop does."""


def printed() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of what is raised, found, judged or logged; what is filled in counts as a word."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for said in _said_by(node):
                    for text in _texts(said):
                        yield f"{path.relative_to(ROOT)}:{said.lineno}", text


def _said_by(call: ast.Call) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name.endswith("Error") or name in ("info", "warning", "error"):
        yield from call.args
    yield from (word.value for word in call.keywords if word.arg in SAID_BY)


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression can be, each way of a condition for itself."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.IfExp(body=one, orelse=other):
            yield from (*_texts(one), *_texts(other))
        case ast.BinOp(left=left, right=right):
            yield from (*_texts(left), *_texts(right))
        case ast.BoolOp(values=values):
            for value in values:
                yield from _texts(value)


def test_texts_are_found_where_they_are_printed() -> None:
    places = {place.partition(":")[0] for place, _ in printed()}
    assert {
        f"kvtrace/{name}.py" for name in ("findings/run/clipping", "gate/policy", "scales/load")
    } <= places


def test_no_sentence_has_more_than_25_words() -> None:
    long = [
        f"{place}: {len(sentence.split())} words: {sentence.strip()}"
        for place, text in printed()
        for sentence in ENDS.split(text)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(
    "banned", [r"(?<!there )\bis no\b(?! longer)", r"\bis none\b", r"\bno longer is\b", r"\b100 ?%"]
)
def test_no_text_has_a_turn_that_is_hard_to_read_nor_a_share_that_was_rounded_to_all(banned: str) -> None:
    found = [f"{place}: {text}" for place, text in printed() if re.search(banned, text)]
    assert not found, "\n".join(found)


def test_findings_and_gates_write_shares_by_the_function_that_rounds_none_to_zero_or_to_all() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for part in ("findings", "gate")
        for path in (ROOT / "kvtrace" / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FormattedValue)
        and node.format_spec is not None
        and "%" in ast.unparse(node.format_spec)
    ]
    assert found == [], "kvtrace.figures.percent"
