"""One chunk file of a trace: encode, decode, and the Zarr v3 metadata that says so.

Codecs are those of the Zarr v3 core: bytes (little endian) → blosc (lz4 over a bit shuffle) → crc32c.
The chunk key is the standard one (`c/<row chunk>/0/0`), so plain zarr reads the arrays. kvtrace opens
the files itself: one chunk at a time, straight into a caller's buffer, each error naming its file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
from numcodecs import Blosc

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.trace.format import ArraySpec

CRC_BYTES: Final = 4
_BLOSC_HEADER_BYTES: Final = 16
_CRC_RESIDUE: Final = 0x48674BC7
"""CRC32C of any message followed by its own CRC32C, little endian."""
_BLOSC_LEVEL: Final = 5
_BLOSC: Final = Blosc(cname="lz4", clevel=_BLOSC_LEVEL, shuffle=Blosc.BITSHUFFLE)


def encode_chunk(values: NDArray[Any]) -> bytes:
    """Return the file content for one whole chunk (C order, the array's dtype)."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    body = bytes(_BLOSC.encode(little))
    crc: int = google_crc32c.value(body)
    return body + crc.to_bytes(CRC_BYTES, "little")


def decode_chunk(
    content: bytes, spec: ArraySpec, num_rows: int, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return one chunk as [num_rows, *spec.row_shape] in `spec.dtype`.

    out: a contiguous array of that shape and dtype to unpack into, on a little-endian machine.
    Raises ValueError: the content is cut, its checksum does not fit, or it has another size.
    """
    # Over the whole content, so that it need not be copied: a sound one has this residue whatever it holds.
    if len(content) < _BLOSC_HEADER_BYTES + CRC_BYTES or google_crc32c.value(content) != _CRC_RESIDUE:
        raise ValueError("the CRC32C of its content does not match the one it ends with")
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    body = memoryview(content)[:-CRC_BYTES]
    # Blosc believes what its header says of both sizes, and would read beyond a body that is shorter.
    unpacked_bytes, packed_bytes = (int.from_bytes(body[at : at + 4], "little") for at in (4, 12))
    expected_bytes = num_rows * math.prod(spec.row_shape) * dtype.itemsize
    if unpacked_bytes != expected_bytes:
        raise ValueError(f"it unpacks to {unpacked_bytes:,} bytes, expected {expected_bytes:,}")
    if packed_bytes != len(body):
        raise ValueError(f"its header says {packed_bytes:,} bytes, it has {len(body):,}")
    assert out is None or out.nbytes == expected_bytes, "a buffer of another size"
    values = np.empty((num_rows, *spec.row_shape), dtype=dtype) if out is None else out
    if unpacked_bytes:  # blosc packs an empty array and refuses to unpack it
        try:
            _BLOSC.decode(body, values)
        except RuntimeError as error:  # blosc's, for whatever it cannot unpack
            raise ValueError(str(error)) from error
    return values.astype(spec.dtype, copy=False)


def most_bytes(spec: ArraySpec, num_rows: int) -> int:
    """Return the size that a file of one chunk can have: what cannot be packed is stored as it is."""
    packed = num_rows * math.prod(spec.row_shape) * np.dtype(spec.dtype).itemsize
    return packed + _BLOSC_HEADER_BYTES + CRC_BYTES


def chunk_crc(content: bytes) -> int:
    """Return the CRC32C that ends a chunk's content."""
    return int.from_bytes(content[-CRC_BYTES:], "little")


def chunk_path(store: Path, spec: ArraySpec, chunk: int) -> Path:
    """Return the file of row chunk `chunk` of one array."""
    return store.joinpath(spec.path, "c", *map(str, (chunk, *(0 for _ in spec.row_shape))))


def array_metadata(spec: ArraySpec, num_rows: int, rows_per_chunk: int) -> dict[str, Any]:
    """Return the array's `zarr.json` (Zarr v3 core specification)."""
    itemsize = np.dtype(spec.dtype).itemsize
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [num_rows, *spec.row_shape],
        "data_type": spec.dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [rows_per_chunk, *spec.row_shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if spec.dtype == "float32" else 0,
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {
                "name": "blosc",
                "configuration": {
                    "cname": "lz4",
                    "clevel": _BLOSC_LEVEL,
                    "shuffle": "bitshuffle",
                    "typesize": itemsize,
                    "blocksize": 0,
                },
            },
            {"name": "crc32c"},
        ],
        "dimension_names": spec.attributes["axes"],
        "attributes": {"kvtrace": spec.attributes},
    }


def group_metadata() -> dict[str, Any]:
    """Return the `zarr.json` of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}
