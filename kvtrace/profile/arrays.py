"""One-chunk Zarr arrays of a profile: write and read, with the trace's codecs and checks."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from kvtrace.errors import IntegrityError
from kvtrace.trace.chunks import array_metadata, chunk_path, decode_chunk, encode_chunk, group_metadata

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


def write_array(root: Path, spec: ArraySpec, values: NDArray[Any]) -> None:
    """Write all of an array as one chunk."""
    file = chunk_path(root, spec, 0)
    file.parent.mkdir(parents=True)
    metadata = array_metadata(spec, len(values), max(1, len(values)))
    (root / spec.path / "zarr.json").write_text(json.dumps(metadata))
    file.write_bytes(encode_chunk(values))


def replace_array(root: Path, spec: ArraySpec, values: NDArray[Any]) -> None:
    """Replace an array's values by as many others, at once."""
    file = chunk_path(root, spec, 0)
    partial = file.with_name(f".{file.name}.partial-{os.getpid()}")
    partial.write_bytes(encode_chunk(values))
    partial.replace(file)


def read_array(root: Path, spec: ArraySpec, num_rows: int) -> NDArray[Any]:
    """Return an array of `num_rows` rows.

    Raises IntegrityError: its file is missing, cut, or differs from its checksum.
    """
    file = chunk_path(root, spec, 0)
    try:
        return decode_chunk(file.read_bytes(), spec, num_rows)
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"{file}: is missing or damaged ({error}). Delete {root}: the profile is made again"
        ) from error
