"""Labels as they are recorded: plain text of bounded length, whoever gave them."""

from __future__ import annotations

import unicodedata


def clean_label(value: object, max_chars: int) -> str | None:
    r"""Return a client's label as plain text of at most `max_chars`, or None where there is none.

    Control characters, line breaks and direction marks go (a label is shown in terminals and reports);
    numbers become text; lists, objects and integers of hundreds of digits are no label.

    >>> clean_label("chat\n\u202e", 64), clean_label(7, 64), clean_label(["a"], 64), clean_label(10**99, 64)
    ('chat', '7', None, None)
    """
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    if isinstance(value, int) and value.bit_length() > 4 * max_chars:
        return None  # Python refuses to spell some thousand digits, and fewer take it long
    text = unicodedata.normalize("NFC", str(value)[: 4 * max_chars])
    printable = "".join(c for c in text if unicodedata.category(c)[0] not in "CZ" or c == " ")
    return printable.strip()[:max_chars].strip() or None
