"""Counts that were made here: they carry a seal by a key that the user alone can read (decision 21).

A checksum says that a file is whole; whoever changes counts makes it anew. This seal
only the user's key makes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from kvtrace.errors import InputError
from kvtrace.files.key_file import IS_PRIVATE, load_or_make_key

if TYPE_CHECKING:
    from pydantic import BaseModel

KEY_VARIABLE: Final = "KVTRACE_KEY_FILE"
"""Names the key's file: teams that share counted traces may share one."""


class Sealed(Protocol):
    """A record with room for a seal."""

    seal: str | None


def own_seal(record: BaseModel, purpose: str) -> str | None:
    """Return the seal of a record over all of it but its own `seal`: HMAC-SHA256, 64 hex digits.

    purpose: what the record is, so that none passes for another. None: the user has no key, and none can be
    made. Raises InputError: the key's file is there and cannot be used.
    """
    key = _own_key()
    if key is None:
        return None
    content = json.loads(record.model_dump_json(exclude={"seal"}))
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, f"kvtrace {purpose}\0".encode() + canonical, hashlib.sha256).hexdigest()


def is_own(record: BaseModel, purpose: str) -> bool:
    """Return whether a record carries the seal of the user's key. Raises InputError as `own_seal` does."""
    found, expected = getattr(record, "seal", None), own_seal(record, purpose)
    return found is not None and expected is not None and hmac.compare_digest(found, expected)


def key_file() -> Path:
    """Return where the user's key is. Raises RuntimeError: there is no home directory."""
    if given := os.environ.get(KEY_VARIABLE):
        return Path(given)
    settings = os.environ.get("XDG_CONFIG_HOME")
    return (Path(settings) if settings else Path.home() / ".config") / "kvtrace" / "seal.key"


def _own_key() -> bytes | None:
    try:
        path = key_file()
        if not os.path.lexists(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    is_there = os.path.lexists(path)
    try:
        return load_or_make_key(path, refused=IS_PRIVATE)
    except OSError as error:
        if not is_there:
            return None
        raise InputError(f"{path}: the key of your counts {error.strerror}; mend it, or delete it") from error
    except ValueError as error:
        raise InputError(f"{error}; delete it: a new one is made, and traces are counted again") from error
