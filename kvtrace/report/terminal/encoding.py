"""The text report where the locale has ASCII alone."""

from __future__ import annotations

from typing import Final

_IN_ASCII: Final = str.maketrans(
    {
        "✕": "X",
        "△": "!",
        "✓": "ok",
        "◌": "?",
        "–": "-",
        "·": "-",
        "×": "x",
        "÷": "/",
        "→": "->",
        "…": "...",
        "⅛": "1/8",
        "²": "^2",
        "Σ": "sum",
    }
)


def encodable(text: str, encoding: str) -> str:
    """Return the text as it is, or, where `encoding` cannot print it, with ASCII signs and `?` for the rest.

    >>> encodable("✓ 2.0 ×", "utf-8"), encodable("✓ 2.0 × é", "ascii")
    ('✓ 2.0 ×', 'ok 2.0 x ?')
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, "replace").decode(encoding)
    return text
