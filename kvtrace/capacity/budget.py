"""The bytes that one rank has for its KV cache, as exactly as they are known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvtrace.errors import InputError

GIB: Final = 1 << 30
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": GIB, "T": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])(iB|B)?|B)?", re.IGNORECASE)
_MOST: Final = 1 << 50
_DECIMAL: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of bytes and how far it may be off: a log has two decimals of a GiB."""

    num_bytes: int
    least: int
    most: int

    @property
    def is_exact(self) -> bool:
        """Return whether it is known to the byte."""
        return self.least == self.most


def exactly(num_bytes: int) -> Budget:
    """Return a budget that is known to the byte."""
    return Budget(num_bytes, num_bytes, num_bytes)


def logged_gib(text: str) -> Budget:
    """Return what a log's two decimals of a GiB stand for.

    >>> logged_gib("39.87").most - logged_gib("39.87").least == round(0.01 * GIB)
    True
    """
    half = GIB / 200
    middle = float(text) * GIB
    return Budget(round(middle), round(middle - half), round(middle + half))


def read_budget(text: str) -> Budget:
    """Return a size as people write it: 40GiB, 40G (the same), 40GB (thousands), or plain bytes.

    Raises InputError: it is none, or is 0.

    >>> read_budget("40GiB").num_bytes == 40 * GIB, read_budget("1.5kB").num_bytes
    (True, 1500)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"--budget {text[:40]!r}: expected bytes or a size such as 40GiB")
    number, letter, ending = found.groups()
    letter = (letter or "").upper()
    unit = _DECIMAL[letter] if letter and (ending or "").upper() == "B" else _UNITS[letter]
    num_bytes = round(float(number) * unit)
    if not 0 < num_bytes <= _MOST:
        raise InputError(f"--budget {text[:40]!r}: expected more than 0 bytes and at most 1,024 TiB")
    return exactly(num_bytes)
