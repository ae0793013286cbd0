"""CRC32C of a run's tables: a changed byte must not become a changed number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import google_crc32c

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import open_regular
from kvtrace.runs.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.runs.table import Table

_READ_BYTES: Final = 1 << 20


def table_checksums(directory: Path) -> dict[str, str]:
    """Return file name → CRC32C (8 hex digits) of every table in `directory`."""
    return {table.file_name: _crc32c(directory / table.file_name) for table in TABLES}


def check_table(directory: Path, table: Table, expected: str | None) -> None:
    """Raise IntegrityError if the table's file is missing or is not the one that was written.

    expected: the checksum recorded; None: none was, so only the file's presence is checked.
    """
    file = directory / table.file_name
    if not os.path.lexists(file):
        raise IntegrityError(f"{file}: missing; every run has it. Run kvtrace replay again")
    try:
        found = _crc32c(file)
    except OSError as error:
        raise IntegrityError(
            f"{file}: cannot be read ({error.strerror}). Run kvtrace replay again"
        ) from error
    if expected is None:
        return
    if found != expected:
        raise IntegrityError(
            f"{file}: damaged: its CRC32C is {found}, expected {expected}. Run kvtrace replay again"
        )


def _crc32c(file: Path) -> str:
    checksum = 0
    with open_regular(file) as content:
        while block := content.read(_READ_BYTES):
            checksum = google_crc32c.extend(checksum, block)
    return f"{checksum:08x}"
