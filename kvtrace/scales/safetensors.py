"""Read safetensors headers and small tensors, trusting nothing in the file.

A file is an 8-byte little-endian header length, a JSON header, and the data. Only the header and the tensors
asked for are read: a shard may be many gigabytes. Every number in the header is checked before it is used.
Source of the layout and of the 100 MB limit: the safetensors format's own description.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from kvtrace.errors import ArtifactError
from kvtrace.files.regular import open_regular
from kvtrace.plain_text import plain
from kvtrace.scales.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES: Final = 100_000_000
MAX_SCALE_VALUES: Final = 65_536
"""More values than any model has heads: a larger tensor is no KV-cache scale."""
ITEM_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
FLOAT_DTYPES: Final = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where one tensor lies. `start` and `end` are byte offsets in the file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorRef]:
    """Return every tensor of a safetensors file by name.

    Raises ArtifactError: the file is cut, its header is no header, or a tensor lies outside the file.
    """
    try:
        with open_regular(path) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise ArtifactError(f"{path}: is {len(prefix)} bytes long, a safetensors file has at least 8")
            (header_bytes,) = struct.unpack("<Q", prefix)
            if header_bytes > MAX_HEADER_BYTES or 8 + header_bytes > file_bytes:
                raise ArtifactError(
                    f"{path}: says its header has {header_bytes:,} bytes, but the file has {file_bytes:,}; "
                    "it is cut or no safetensors file"
                )
            text = file.read(header_bytes)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    header = parse_json(text, path, what="safetensors header")
    if not isinstance(header, dict):
        raise ArtifactError(f"{path}: the safetensors header is not a JSON object")
    header.pop("__metadata__", None)
    data_start = 8 + header_bytes
    return {name: _tensor_ref(name, entry, path, data_start, file_bytes) for name, entry in header.items()}


def read_values(ref: TensorRef) -> tuple[float, ...]:
    """Return a small tensor's values as floats, flattened in C order.

    Raises ArtifactError: not a float dtype, too many values, or the file is cut.
    """
    num_values = _product(ref.shape)
    if ref.dtype not in FLOAT_DTYPES or num_values > MAX_SCALE_VALUES:
        raise ArtifactError(
            f"{ref.path}: {shown(ref.name)} is {ref.dtype} with {num_values:,} values; a scale is "
            f"{', '.join(FLOAT_DTYPES)} with at most {MAX_SCALE_VALUES:,}"
        )
    try:
        with open_regular(ref.path) as file:
            file.seek(ref.start)
            raw = file.read(ref.end - ref.start)
    except OSError as error:
        raise ArtifactError(f"{ref.path}: cannot be read ({error.strerror})") from error
    if len(raw) != num_values * ITEM_BYTES[ref.dtype]:
        raise ArtifactError(f"{ref.path}: ends inside {shown(ref.name)}")
    if ref.dtype == "BF16":
        raw = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
    code = {"BF16": "f", "F16": "e", "F32": "f", "F64": "d"}[ref.dtype]
    return struct.unpack(f"<{num_values}{code}", raw)


def shown(name: str) -> str:
    """Return a name from a file as an error line shows it."""
    return f"'{plain(name, 120)}'"


def _tensor_ref(name: str, entry: Any, path: Path, data_start: int, file_bytes: int) -> TensorRef:
    def wrong(why: str) -> ArtifactError:
        return ArtifactError(f"{path}: the header entry of {shown(name)} {why}")

    if not isinstance(entry, dict):
        raise wrong("is not a JSON object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise wrong("has no dtype")
    if not _is_counts(shape) or len(shape) > 16:
        raise wrong("has no usable shape")
    if not _is_counts(offsets) or len(offsets) != 2:
        raise wrong("has no usable data_offsets")
    start, end = data_start + offsets[0], data_start + offsets[1]
    if not start <= end <= file_bytes:
        raise wrong(f"points to bytes {start:,} to {end:,} of a file of {file_bytes:,}")
    item_bytes = ITEM_BYTES.get(dtype)
    if item_bytes is not None and end - start != _product(shape) * item_bytes:
        raise wrong(
            f"has {end - start:,} bytes, its shape {list(shape)} and dtype {dtype} need another number"
        )
    return TensorRef(name, path, dtype, tuple(shape), start, end)


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _product(shape: tuple[int, ...] | list[int]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product
