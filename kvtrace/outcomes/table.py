"""The table of outcomes that `kvtrace outcomes` writes: a header line, then one JSON object a row."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.fields import flag, shown, table, text, text_or_none, whole, whole_or_none
from kvtrace.outcomes.outcome import KINDS, MAX_OUTCOMES, Outcome
from kvtrace.outcomes.strict_files import json_lines, located

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TABLE_VERSION: Final = "1.0"
_HEADER_LINES: Final = 1


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """A table that was read."""

    path: Path
    key: str
    """Names the key that its hashes were made with."""
    key_is_shared: bool
    """Whether traces may be under the same key."""
    rows: tuple[Outcome, ...]


def read_outcomes(path: Path) -> OutcomeTable:
    """Return a table. Raises OutcomesError: the file is none, was cut, or a row is not what it should be."""
    lines = json_lines(path)
    number, header = next(lines, (0, {}))
    with located(path):
        if "kvtrace_outcomes" not in header or number != _HEADER_LINES:
            raise ValueError(
                "cannot be read as a table of outcomes; make one of it with kvtrace outcomes FILE -o TABLE"
            )
        version = text(header, "kvtrace_outcomes", most=20)
        if version.partition(".")[0] != TABLE_VERSION.partition(".")[0]:
            raise ValueError(
                f"is a table of version {shown(version)}, expected {TABLE_VERSION}; update kvtrace"
            )
        key, is_shared = text(header, "key", most=64), flag(header, "key_is_shared")
        expected = whole(header, "rows")
    rows = []
    for number, record in lines:
        with located(path, f"line {number}"):
            rows.append(_row(record))
    with located(path):
        if len(rows) != expected:
            raise ValueError(f"has {len(rows):,} rows, its header says {expected:,}: it was cut or changed")
    return OutcomeTable(path, key, is_shared, tuple(rows))


def all_rows(tables: Iterable[OutcomeTable]) -> list[Outcome]:
    """Return the rows of several tables.

    Raises OutcomesError: their prompts were hashed under different keys, or there are too many rows.
    """
    tables = list(tables)
    if len({one.key for one in tables}) > 1:
        raise OutcomesError(
            f"{tables[0].path} and {tables[-1].path}: their prompts were hashed under different keys; "
            "make them in one call of kvtrace outcomes, or each with the same --key"
        )
    rows = [row for one in tables for row in one.rows]
    if len(rows) > MAX_OUTCOMES:
        raise OutcomesError(f"{tables[-1].path}: makes more than {MAX_OUTCOMES:,} answers")
    return rows


def _row(record: dict[str, Any]) -> Outcome:
    outcome = record.get("outcome")
    if outcome not in KINDS:
        raise ValueError(f"outcome is {shown(outcome)}, expected one of {', '.join(KINDS)}")
    tags = table(record, "tags")
    task = record.get("task")
    if not isinstance(task, str):
        raise ValueError(f"task is {shown(task)}, expected a text")
    return Outcome(
        id=text(record, "id", most=600),
        variant=sys.intern(text(record, "variant", most=64)),
        repetition=whole(record, "repetition"),
        task=sys.intern(task),
        cluster=text_or_none(record, "cluster"),
        outcome=outcome,
        reason=text_or_none(record, "reason", most=1000),
        output_tokens=whole_or_none(record, "output_tokens"),
        tags=tuple(sorted((sys.intern(key), sys.intern(text(tags, key))) for key in tags)),
        prompt_digest=text_or_none(record, "prompt_digest"),
        client_id=text_or_none(record, "client_id"),
        prompt_hash=text_or_none(record, "prompt_hash"),
        external_id=text_or_none(record, "external_id"),
    )
