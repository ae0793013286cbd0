"""Whether a directory is a trace that this kvtrace reads: its first record."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvtrace.errors import NotATraceError, SchemaVersionError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.plain_text import plain
from kvtrace.trace.format import SCHEMA_VERSION, TRACE_FILE, TraceRecord
from kvtrace.trace.requests import read_sealed

if TYPE_CHECKING:
    from pathlib import Path


def read_trace_record(path: Path) -> TraceRecord:
    """Return `trace.json`. Raises NotATraceError, SchemaVersionError or IntegrityError."""
    file = path / TRACE_FILE
    if not path.exists():
        raise NotATraceError(f"{path}: no such file or directory; expected a trace (NAME.kvtrace)")
    if not os.path.lexists(file):
        raise NotATraceError(
            f"{path}: is not a trace: expected a directory with {TRACE_FILE}, as capture writes it "
            "(NAME.kvtrace)"
        )
    check_schema_version(file, SCHEMA_VERSION)
    return read_sealed(file, TraceRecord)


def check_schema_version(file: Path, supported: str) -> None:
    """Raise SchemaVersionError if the JSON file's schema_version has another major version than `supported`.

    A file that is no JSON passes: the reader of its content says what is wrong with it.
    """
    try:
        content = parse_strict_json(read_regular(file))
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(content, dict) or "schema_version" not in content:
        raise NotATraceError(
            f"{file}: is not a record of kvtrace: expected a JSON object with a schema_version"
        )
    found = str(content["schema_version"])
    if found.split(".")[0] != supported.split(".")[0]:
        raise SchemaVersionError(
            f"{file}: has schema version {plain(found)}, this kvtrace reads {supported.split('.')[0]}.x. "
            "Install the kvtrace that wrote it, or a newer one"
        )
