"""The profile of a trace on disk: exact magnitude counts per cell, and the absmax of every vector.

    NAME.kvtrace/profile/       a Zarr v3 group; every array is one chunk, with the trace's codecs
      profile.json              ProfileRecord, sealed: what was profiled. Written last
      chunks/{size,mtime_ns}    [chunk] int64, of the tensor chunks, in `Trace.block_refs` order
      layers/NN/{k,v}/code      [entry] uint16, magnitude codes (bits without the sign), ascending
                                within each (kv_head, cell)
      layers/NN/{k,v}/count     [entry] uint32, how many values have that code
      layers/NN/{k,v}/start     [kv_head × cell + 1] int64, where each (kv_head, cell) begins
      layers/NN/{k,v}/absmax    [token, kv_head] uint16, code of the vector's largest finite magnitude
      layers/NN/{k,v}/outlier_{code,count,start}    the same as code, count and start, of the values in
                                outlier channels alone; absent where no KV head has such channels

    NAME.kvtrace/profile-groups/    the same over other cells, for intervals: workload × phase × sampling_id
                                    × group of requests. Made when intervals were first asked for

A code above the captured dtype's largest finite one stands for inf or NaN. In `absmax` the top bit says
that the vector holds such values; `NO_FINITE_VALUE` in the other bits that it holds nothing else; `ABSENT`
that the token was not stored for this head. The counts are a lossless summary for every static scale:
nothing is binned.
"""

from __future__ import annotations

from typing import Final, Literal

from kvtrace.trace.format import ArraySpec, StoredDtype
from kvtrace.trace.sealed import Hex, Record

PROFILE_SCHEMA_VERSION: Final = "1.3"
PROFILE_DIRECTORY: Final = "profile"
GROUPS_DIRECTORY: Final = "profile-groups"
PROFILE_FILE: Final = "profile.json"

HAS_NONFINITE: Final = 0x8000
NO_FINITE_VALUE: Final = 0x7FFE
ABSENT: Final = 0xFFFF


class CellRecord(Record):
    """One cell, in the order of the arrays' cell axis."""

    workload: str
    phase: Literal["prefill", "decode"]
    position_octave: int | None = None
    """None: any position."""
    sampling_id: int
    request_group: int | None = None
    """None: any request. Since 1.1."""


class TensorRecord(Record):
    """One layer, K or V."""

    layer: int
    tensor: Literal["k", "v"]
    kv_heads: tuple[int, ...]
    """Global ids, ascending: the kv_head axis."""
    head_dim: int
    dtype: StoredDtype
    num_entries: int
    crcs: tuple[int, ...] | None = None
    """CRC32C that the files of `tensor_specs` end with, in that order. Since 1.1."""
    sha256: tuple[Hex, ...] | None = None
    """Of the same files: what `ProfileRecord.seal` vouches for. Since 1.2."""
    outlier_channels: tuple[tuple[int, ...], ...] | None = None
    """Of each KV head, ascending: the few channels that hold most of its Σ x²
    (`kvtrace.profile.outlier_channels`). None: not looked for. Since 1.3."""
    num_outlier_entries: int = 0
    """Since 1.3."""


class ProfileRecord(Record):
    """`profile.json`."""

    schema_version: str = PROFILE_SCHEMA_VERSION
    trace_sha256: str
    """`Trace.digest`, over all records and commit digests: a profile of another state is not used."""
    kvtrace_version: str
    created_at: float
    """Unix seconds."""
    num_tokens: int
    num_chunks: int
    cells: tuple[CellRecord, ...]
    tensors: tuple[TensorRecord, ...]
    seal: Hex | None = None
    """By the key of the user who counted (`kvtrace.profile.own_seal`). Since 1.2; without it, or with another
    one, the tensors are counted again."""


def chunk_specs() -> tuple[ArraySpec, ...]:
    """Return the arrays `chunks/size` (bytes) and `chunks/mtime_ns`."""
    return tuple(
        ArraySpec(path=f"chunks/{name}", dtype="int64", attributes={"axes": ["chunk"]})
        for name in ("size", "mtime_ns")
    )


def tensor_specs(record: TensorRecord) -> dict[str, ArraySpec]:
    """Return the arrays of one layer, K or V, by name: code, count, start, absmax, and those of outliers."""
    path = f"layers/{record.layer:02d}/{record.tensor}"
    attributes = {"dtype": record.dtype, "head_axis": "kv"}

    def spec(name: str, dtype: str, axis: str) -> ArraySpec:
        return ArraySpec.model_validate(
            {"path": f"{path}/{name}", "dtype": dtype, "attributes": {**attributes, "axes": [axis]}}
        )

    absmax = ArraySpec(
        path=f"{path}/absmax",
        dtype="uint16",
        row_shape=(len(record.kv_heads),),
        attributes={**attributes, "axes": ["token", "kv_head"]},
    )
    counts = {"code": ("uint16", "entry"), "count": ("uint32", "entry"), "start": ("int64", "head_and_cell")}
    specs = {name: spec(name, *kind) for name, kind in counts.items()} | {"absmax": absmax}
    if any(record.outlier_channels or ()):
        specs |= {f"outlier_{name}": spec(f"outlier_{name}", *kind) for name, kind in counts.items()}
    return specs
