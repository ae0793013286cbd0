"""What other commands found, read back from the JSON that they wrote."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from kvtrace.capacity.report import CapacityReport
from kvtrace.decide.decision import Evidence
from kvtrace.errors import InputError
from kvtrace.files.regular import RECORD_BYTES, open_regular, read_regular
from kvtrace.gate.outcome import CheckOutcome
from kvtrace.outcomes.strict_files import parse_object
from kvtrace.plain_text import plain
from kvtrace.quality.comparison import QualityComparison

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.serving.contract import Contract
    from kvtrace.serving.report import GoodputReport
    from kvtrace.serving.table import ServingTable

_Model = TypeVar("_Model", bound=BaseModel)
_MADE_BY: Final = {
    "quality": "kvtrace quality compare --json",
    "capacity": "kvtrace capacity --json",
    "check": "kvtrace check --json",
}


@dataclass(frozen=True, slots=True)
class Found:
    """All that a decision rests on. None: it was not given."""

    baseline: str
    candidate: str
    contract: Contract
    tables: tuple[ServingTable, ...]
    goodput: GoodputReport
    """Of one offered rate."""
    quality: QualityComparison | None
    capacity: CapacityReport | None
    check: CheckOutcome | None
    evidence: tuple[Evidence, ...]


def read_quality(path: Path) -> tuple[QualityComparison, Evidence]:
    """Return what `kvtrace quality compare` wrote. Raises InputError: the file is not that."""
    return _read(path, QualityComparison, "quality")


def read_capacity(path: Path) -> tuple[CapacityReport, Evidence]:
    """Return what `kvtrace capacity` wrote. Raises InputError: the file is not that."""
    return _read(path, CapacityReport, "capacity")


def read_check(path: Path) -> tuple[CheckOutcome, Evidence]:
    """Return what `kvtrace check` wrote. Raises InputError: the file is not that."""
    return _read(path, CheckOutcome, "check")


def named(path: Path, kind: Literal["serving", "policy"]) -> Evidence:
    """Return a file by its digest. Raises InputError: it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return Evidence(kind=kind, file=path.name, sha256=digest.hexdigest())


def _read(
    path: Path, model: type[_Model], kind: Literal["quality", "capacity", "check"]
) -> tuple[_Model, Evidence]:
    expected = f"expected what {_MADE_BY[kind]} prints"
    try:
        content = read_regular(path, RECORD_BYTES)
        record = parse_object(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; {expected}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; {expected}") from error
    ours = str(model.model_fields["schema_version"].default).partition(".")[0]
    if str(record.get("schema_version")).partition(".")[0] != ours:
        raise InputError(f"{path}: has no schema_version {ours}; {expected}")
    if kind == "check":
        _leave_out_heads(record)
    try:
        found = model.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = plain(".".join(str(part) for part in first["loc"]), 80)
        raise InputError(f"{path}: {where}: {plain(first['msg'], 200)}; {expected}") from error
    return found, Evidence(kind=kind, file=path.name, sha256=hashlib.sha256(content).hexdigest())


def _leave_out_heads(record: dict[str, Any]) -> None:
    """Leave out single heads, which decide nothing here and whose value may be null for an infinite one."""
    segments = record.get("segments")
    for segment in segments if isinstance(segments, list) else ():
        limits = segment.get("limits") if isinstance(segment, dict) else None
        for limit in limits if isinstance(limits, list) else ():
            if isinstance(limit, dict):
                limit |= {"worst": None, "breached": []}
