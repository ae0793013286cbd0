"""Reads `policy.toml`: one file of limits, of which gate, quality and serving each check their part."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from kvtrace.errors import PolicyError
from kvtrace.files.regular import read_regular
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_BYTES: Final = 1_000_000
Checked = TypeVar("Checked", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class PolicyKeys:
    """What an error says is expected."""

    whole: type[BaseModel]
    """Of a key that is in none of the tables."""
    tables: Mapping[str, type[BaseModel]]
    """By name; the innermost counts."""
    missing: str
    """What cannot be done without a key, in words."""


@dataclass(frozen=True, slots=True)
class ReadPolicy(Generic[Checked]):
    """A policy's content, and the hash of the file."""

    content: Checked
    sha256: str


def read_policy(path: Path, kind: type[Checked], keys: PolicyKeys) -> ReadPolicy[Checked]:
    """Return the file's content.

    Raises PolicyError: no such file, no TOML, a table or key is missing or unknown, a limit cannot be used.
    """
    try:
        content = read_regular(path, _MAX_BYTES)
        table = tomllib.loads(content.decode())
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read: {error.strerror}; expected a policy in TOML") from error
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{path}: not TOML: {plain(str(error), 200)}") from error
    try:
        return ReadPolicy(kind.model_validate(table), hashlib.sha256(content).hexdigest())
    except ValidationError as error:
        raise PolicyError(f"{path}: {first_problem(error, keys)}") from error


def first_problem(error: ValidationError, keys: PolicyKeys) -> str:
    """Return the first thing that is wrong: where, what, and what was expected."""
    problems = error.errors(include_url=False)
    # A misspelt key is missing too: its own name says more.
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    where = plain(".".join(str(part) for part in first["loc"]), 80)
    if first["type"] == "extra_forbidden":
        parents = [str(part) for part in first["loc"][:-1] if part in keys.tables]
        held = keys.tables[parents[-1]] if parents else keys.whole
        return f"{where}: no such key; expected one of {', '.join(sorted(held.model_fields))}"
    if first["type"] == "missing":
        return f"{where}: missing; {keys.missing}"
    message = plain(first["msg"].removeprefix("Value error, "), 300)
    return f"{where}: {message}" if where else message
