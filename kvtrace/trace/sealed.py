"""Sealed JSON: every record of a trace, a profile or a run carries the checksum of itself.

A record that is read is held against the limits beside its fields; one that is made is not, as it is made
inside a serving engine, which no odd number of its configuration may stop.
Only pydantic, google-crc32c and strict JSON are imported here: this module is loaded inside that engine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import google_crc32c
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from kvtrace.files.strict_json import parse_strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence

RecordT = TypeVar("RecordT", bound="Record")
_READ: Final = {"is read": True}
_NUM_SHOWN: Final = 80


class Record(BaseModel):
    """Base of all records. Unknown keys are ignored: a minor version may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


def is_read(info: ValidationInfo) -> bool:
    """Return whether a record is read from a file, and not made."""
    return bool(info.context)


def between(least: float, most: float) -> AfterValidator:
    """Return the limits of a number, both included, for a record that is read."""

    def check(value: float, info: ValidationInfo) -> float:
        if is_read(info) and not least <= value <= most:
            raise ValueError(f"is {str(value)[:_NUM_SHOWN]}, expected {least:,} to {most:,}")
        return value

    return AfterValidator(check)


def at_most(length: int) -> AfterValidator:
    """Return the limit of a text's characters, for a record that is read."""

    def check(value: str, info: ValidationInfo) -> str:
        if is_read(info) and len(value) > length:
            raise ValueError(f"has {len(value):,} characters, expected at most {length:,}")
        return value

    return AfterValidator(check)


def _hexadecimal(value: str, info: ValidationInfo) -> str:
    if is_read(info) and set(value) - set("0123456789abcdef"):
        raise ValueError(f"is {value[:_NUM_SHOWN]!r}, expected hexadecimal digits")
    return value


Count = Annotated[int, between(0, 2**31 - 1)]
Large = Annotated[int, between(0, 2**63 - 1)]
Size = Annotated[int, between(0, 1 << 16)]
"""Of an axis: layers, heads, head_dim, ranks."""
Number = Annotated[float, between(0, 1e18)]
Seconds = Annotated[float, between(0, 253_402_300_799)]
"""Unix seconds, up to the year 9999."""
Name = Annotated[str, at_most(4096)]
Hex = Annotated[str, AfterValidator(_hexadecimal)]


def repeated(values: Sequence[Any]) -> Any:
    """Return a value that is there twice; None where none is."""
    seen = set[Any]()
    return next((value for value in values if value in seen or seen.add(value)), None)  # type: ignore[func-returns-value]


def seal(record: Record, *, indent: int | None = None) -> str:
    """Return the record as JSON with its checksum under `crc32c`.

    The checksum is over the canonical form (sorted keys, no spaces, UTF-8), so indentation is free.
    """
    content = json.loads(record.model_dump_json())
    content["crc32c"] = _checksum(content)
    return json.dumps(content, indent=indent, allow_nan=False)


def unseal(text: str | bytes, kind: type[RecordT]) -> RecordT:
    """Parse a sealed JSON object.

    Raises ValueError: no JSON object, a wrong or absent checksum, or a field that does not fit `kind` or
    exceeds its limits; the text names it.
    """
    try:
        content = parse_strict_json(text.encode() if isinstance(text, str) else text)
        if not isinstance(content, dict):
            raise ValueError("expected a JSON object")
        found = content.pop("crc32c", None)
        if found != _checksum(content):
            raise ValueError(f"checksum is {str(found)[:20]}, its content gives {_checksum(content)}")
        return kind.model_validate(content, context=_READ)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg'].removeprefix('Value error, ')}" if where else first["msg"]


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(canonical.encode()):08x}"
