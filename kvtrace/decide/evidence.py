"""What other commands found, read back from the JSON that they wrote."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from kvtrace.capacity.report import CapacityReport
from kvtrace.decide.decision import Evidence
from kvtrace.errors import InputError
from kvtrace.files.regular import RECORD_BYTES, open_regular, read_regular
from kvtrace.gate.outcome import CheckOutcome
from kvtrace.outcomes.strict_files import parse_object
from kvtrace.plain_text import plain
from kvtrace.quality.comparison import QualityComparison
from kvtrace.report.harm.model import Harm
from kvtrace.report.sections import REPORT_SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.serving.contract import Contract
    from kvtrace.serving.report import GoodputReport
    from kvtrace.serving.table import ServingTable

_Model = TypeVar("_Model", bound=BaseModel)
_Found = TypeVar("_Found")
_Kind = Literal["quality", "capacity", "check", "report"]
_EXPECTED: Final[dict[_Kind, str]] = {
    "quality": "expected what kvtrace quality compare --json prints",
    "capacity": "expected what kvtrace capacity --json prints",
    "check": "expected what kvtrace check --json prints",
    "report": "expected what kvtrace report --json prints",
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
    harm: Harm | None
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


def read_harm(path: Path) -> tuple[Harm | None, Evidence]:
    """Return the harm in what `kvtrace report` wrote; None: it was not measured.

    Raises InputError: the file is not that.
    """
    record, content = _record(path, "report", REPORT_SCHEMA_VERSION)
    found = _validated(path, TypeAdapter(Harm | None), record.get("harm"), "report")
    return found, _evidence(path, "report", content)


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
    record, content = _record(path, kind, str(model.model_fields["schema_version"].default))
    if kind == "check":
        _leave_out_heads(record)
    return _validated(path, TypeAdapter(model), record, kind), _evidence(path, kind, content)


def _record(path: Path, kind: _Kind, version: str) -> tuple[dict[str, Any], bytes]:
    try:
        content = read_regular(path, RECORD_BYTES)
        record = parse_object(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; {_EXPECTED[kind]}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; {_EXPECTED[kind]}") from error
    ours = version.partition(".")[0]
    if str(record.get("schema_version")).partition(".")[0] != ours:
        raise InputError(f"{path}: has no schema_version {ours}; {_EXPECTED[kind]}")
    return record, content


def _validated(path: Path, adapter: TypeAdapter[_Found], record: object, kind: _Kind) -> _Found:
    try:
        return adapter.validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = plain(".".join(str(part) for part in first["loc"]), 80)
        raise InputError(f"{path}: {where}: {plain(first['msg'], 200)}; {_EXPECTED[kind]}") from error


def _evidence(path: Path, kind: _Kind, content: bytes) -> Evidence:
    return Evidence(kind=kind, file=path.name, sha256=hashlib.sha256(content).hexdigest())


def _leave_out_heads(record: dict[str, Any]) -> None:
    """Leave out the list of heads, and a head whose value is null for an infinite one."""
    segments = record.get("segments")
    for segment in segments if isinstance(segments, list) else ():
        limits = segment.get("limits") if isinstance(segment, dict) else None
        for limit in limits if isinstance(limits, list) else ():
            if isinstance(limit, dict):
                head = limit.get("worst")
                is_told = isinstance(head, dict) and head.get("value") is not None
                limit |= {"worst": head if is_told else None, "breached": []}
