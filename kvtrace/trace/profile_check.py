"""Reread the profiles that a trace keeps: `inspect --verify` names what a replay would stumble over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.errors import IntegrityError
from kvtrace.trace.chunks import chunk_crc, chunk_path, decode_chunk
from kvtrace.trace.format import unseal
from kvtrace.trace.profile_format import PROFILE_FILE, ProfileRecord, chunk_specs, tensor_specs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.trace.format import ArraySpec


def verify_profiles(trace: Path, digest: str) -> None:
    """Check every array of every profile that a replay would use. digest: `Trace.digest`.

    A profile.json that is damaged is no fault: without it a replay makes the profile again.
    Raises IntegrityError naming the file.
    """
    for file in sorted(trace.glob(f"profile*/{PROFILE_FILE}")):
        try:
            record = unseal(file.read_bytes(), ProfileRecord)
        except (OSError, ValueError):
            continue
        for spec, num_rows, crc in _arrays(record) if record.trace_sha256 == digest else ():
            _check_array(file.parent, spec, num_rows, crc)


def _arrays(record: ProfileRecord) -> Iterator[tuple[ArraySpec, int, int | None]]:
    """Yield every array with its length and the CRC32C that its file must end with, where that is known."""
    for spec in chunk_specs():
        yield spec, record.num_chunks, None
    for tensor in record.tensors:
        starts = len(tensor.kv_heads) * len(record.cells) + 1
        lengths = {"code": tensor.num_entries, "count": tensor.num_entries, "start": starts}
        crcs = tensor.crcs or (None,) * 4
        for (name, spec), crc in zip(tensor_specs(tensor).items(), crcs, strict=True):
            yield spec, lengths.get(name, record.num_tokens), crc


def _check_array(profile: Path, spec: ArraySpec, num_rows: int, crc: int | None) -> None:
    file = chunk_path(profile, spec, 0)
    try:
        content = file.read_bytes()
        decode_chunk(content, spec, num_rows)
        if crc is not None and chunk_crc(content) != crc:
            raise ValueError("it is another array's")
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"{file}: is missing or damaged ({error}). Delete {profile}: the profile is made again"
        ) from error
