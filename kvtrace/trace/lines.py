"""How far a file of JSON lines can be trusted: `requests.commit.json` stands beside `requests.jsonl`.

A line says by its seal that it is whole, but not that it was the last one: a file that was cut at the end of
a line looks like a shorter one. The commit beside it says how many bytes were written and what they were;
what it does not cover does not exist, as with `commit.json` and chunks. Loaded inside the serving engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.trace.sealed import Count, Hex, Large, Record

if TYPE_CHECKING:
    from pathlib import Path


class LinesCommit(Record):
    """`NAME.commit.json`, replaced atomically."""

    num_bytes: Large
    num_lines: Count
    content_crc32c: Hex
    """CRC32C of the first `num_bytes` bytes, 8 hex digits."""
    num_lost: Count = 0
    """Lines that could not be written."""


def lines_commit_file(lines: Path) -> Path:
    """Return the file of a JSON-lines file's commit.

    >>> from pathlib import Path
    >>> lines_commit_file(Path("t.kvtrace/requests.jsonl")).name
    'requests.commit.json'
    """
    return lines.with_name(f"{lines.stem}.commit.json")
