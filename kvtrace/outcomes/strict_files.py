"""Files from elsewhere read strictly: JSON lines one by one, a document whole; limits on all sizes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import OutcomesError
from kvtrace.files.regular import open_regular, read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.outcomes.outcome import MAX_OUTCOMES
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE_BYTES: Final = 16_000_000
"""A prompt of the longest context, its answer and its log-probabilities."""
DOCUMENT_BYTES: Final = 1_000_000_000


def json_lines(path: Path, *, constants: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a file of JSON lines; empty lines are passed over.

    constants: take NaN and Infinity, which Python's own writer makes.
    Raises OutcomesError: the file cannot be read, or a line is too long or no JSON object.
    """
    with located(path), open_regular(path) as file:
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            if number > MAX_OUTCOMES:
                raise ValueError(f"it has more than {MAX_OUTCOMES:,} lines")
            with located(path, f"line {number}"):
                if len(line) > LINE_BYTES:
                    raise ValueError(f"it is longer than {LINE_BYTES:,} bytes")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if not line.strip():
                    continue
                record = parse_object(line, constants=constants)
            yield number, record


def json_document(path: Path, *, constants: bool = False) -> dict[str, Any]:
    """Return a file that is one JSON object. Raises OutcomesError: it cannot be read, or is not one."""
    with located(path):
        return parse_object(read_regular(path, DOCUMENT_BYTES), constants=constants)


def parse_object(content: bytes, *, constants: bool = False) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError: it is not one, or readers would read it differently."""
    try:
        found = parse_strict_json(content, constants=constants)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which is not text") from error
    except ValueError as error:
        raise ValueError(f"it cannot be read as JSON: {plain(str(error), 100)}") from error
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


@contextmanager
def located(path: Path, place: str | None = None) -> Iterator[None]:
    """Turn what goes wrong inside into one line that names the file and the place in it."""
    try:
        yield
    except OutcomesError:
        raise
    except OSError as error:
        raise OutcomesError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise OutcomesError(f"{path}: {f'{place}: ' if place else ''}{error}") from error
