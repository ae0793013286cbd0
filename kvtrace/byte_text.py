"""Numbers of bytes as people read them."""

from __future__ import annotations


def byte_text(number: float) -> str:
    """Return a number of bytes in thousands, three digits.

    >>> byte_text(1_440_000), byte_text(999), byte_text(999_600)
    ('1.44 MB', '999 B', '1 MB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.5 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"
