"""One-chunk Zarr arrays of a profile: write and read, with the trace's codecs and checks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import read_regular
from kvtrace.files.replaced import replace_file
from kvtrace.trace.chunks import (
    array_metadata,
    chunk_crc,
    chunk_path,
    decode_chunk,
    encode_chunk,
    group_metadata,
    most_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.trace.format import ArraySpec


def write_group(root: Path, path: str) -> None:
    """Make the Zarr groups from `root` down to `path`."""
    group = root
    for name in ("", *path.split("/")):
        group = group / name if name else group
        group.mkdir(parents=True, exist_ok=True)
        (group / "zarr.json").write_text(json.dumps(group_metadata()))


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What identifies an array's file."""

    crc: int
    """CRC32C that it ends with."""
    sha256: str


def write_array(root: Path, spec: ArraySpec, values: NDArray[Any]) -> WrittenFile:
    """Write all of an array as one chunk, and return what identifies its file."""
    file = chunk_path(root, spec, 0)
    file.parent.mkdir(parents=True)
    metadata = array_metadata(spec, len(values), max(1, len(values)))
    (root / spec.path / "zarr.json").write_text(json.dumps(metadata))
    content = encode_chunk(values)
    file.write_bytes(content)
    return WrittenFile(chunk_crc(content), hashlib.sha256(content).hexdigest())


def replace_array(root: Path, spec: ArraySpec, values: NDArray[Any]) -> None:
    """Replace an array's values by as many others, at once."""
    replace_file(chunk_path(root, spec, 0), encode_chunk(values))


def read_array(
    root: Path,
    spec: ArraySpec,
    num_rows: int,
    crc: int | None = None,
    sha256: str | None = None,
    *,
    mend: str | None = None,
) -> NDArray[Any]:
    """Return an array of `num_rows` rows. crc, sha256: of its file, where they are known.

    mend: what to do about a damaged one; None: to have the profile made again.
    Raises IntegrityError: its file is missing, cut, differs from its checksum, or is another array's.
    """
    file = chunk_path(root, spec, 0)
    try:
        content = read_regular(file, most_bytes(spec, num_rows))
        if crc is not None and chunk_crc(content) != crc:
            raise ValueError("it does not end with the CRC32C that profile.json has for it")
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError("its SHA-256 is not the one that profile.json has for it")
        return decode_chunk(content, spec, num_rows)
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"{file}: is missing or damaged ({error}). {mend or f'Delete {root}: the profile is made again'}"
        ) from error
