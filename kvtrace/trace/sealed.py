"""Sealed JSON: every record of a trace, a profile or a run carries the checksum of itself.

Only pydantic and google-crc32c are imported here: this module is loaded inside the serving engine.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import google_crc32c
from pydantic import BaseModel, ConfigDict

RecordT = TypeVar("RecordT", bound="Record")


class Record(BaseModel):
    """Base of all records. Unknown keys are ignored: a minor version may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


def seal(record: Record, *, indent: int | None = None) -> str:
    """Return the record as JSON with its checksum under `crc32c`.

    The checksum is over the canonical form (sorted keys, no spaces, UTF-8), so indentation is free.
    """
    content = json.loads(record.model_dump_json())
    content["crc32c"] = _checksum(content)
    return json.dumps(content, indent=indent, allow_nan=False)


def unseal(text: str | bytes, kind: type[RecordT]) -> RecordT:
    """Parse a sealed JSON object.

    Raises ValueError: no JSON object, a wrong or absent checksum, or a field that does not fit `kind`.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    found = content.pop("crc32c", None)
    if found != _checksum(content):
        raise ValueError(f"checksum is {found}, its content gives {_checksum(content)}")
    return kind.model_validate(content)


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(canonical.encode()):08x}"
