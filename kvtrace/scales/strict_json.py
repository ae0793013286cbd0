"""Parse JSON that someone else wrote: bounded in size, one clear error whatever is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import ArtifactError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json

if TYPE_CHECKING:
    from pathlib import Path

MAX_JSON_BYTES: Final = 64_000_000
"""The index of a 1,000-shard checkpoint has some 20 MB."""


def read_json(path: Path) -> Any:
    """Return a JSON file's content.

    Raises ArtifactError: it cannot be read, is too large, or is not JSON.
    """
    try:
        text = read_regular(path, MAX_JSON_BYTES)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    return parse_json(text, path, what="file")


def parse_json(text: bytes, path: Path, *, what: str) -> Any:
    """Return parsed JSON; an object with a repeated key is refused, since readers would differ on it.

    Raises ArtifactError: `text` is not UTF-8 or not JSON, or nests too deeply.
    """
    try:
        return parse_strict_json(text, constants=True)
    except RecursionError:
        raise ArtifactError(f"{path}: the JSON of the {what} nests too deeply") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, a repeated key, an endless integer
        reason = str(error)
        raise ArtifactError(f"{path}: the {what} is not valid JSON ({reason[:200]})") from None
