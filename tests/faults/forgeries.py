"""Profiles that no trace can have, every checksum right: as a sender would write them, not as a disk would.

Each kind is impossible whatever is drawn: none leaves a sound profile by chance.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE
from kvtrace.profile.own_seal import own_seal
from kvtrace.profile.store import StoredProfile
from kvtrace.trace.chunks import CRC_BYTES, chunk_crc, chunk_path, encode_chunk
from kvtrace.trace.format import seal, unseal
from kvtrace.trace.profile_format import PROFILE_FILE, ProfileRecord, TensorRecord, tensor_specs

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.profile.counts import TensorProfile

    ForgeArray = Callable[[random.Random, TensorProfile], tuple[str, NDArray[Any]]]
    ForgeBody = Callable[[random.Random, bytearray], bytearray]
    ForgeTensor = Callable[[random.Random, TensorRecord], dict[str, Any]]
    ForgeRecord = Callable[[random.Random, ProfileRecord], dict[str, Any]]

_FAR: Final = (1, 7, 1000, 10**6, 10**9, 1 << 40, (1 << 62) - 1)
_STORED_AS_IT_IS: Final = 2
"""Of the flags in blosc's header."""
_HUGE: Final = (10**12, 1 << 33, 1 << 70)


def forge(random: random.Random, profile: Path, kind: str) -> str:
    """Change one thing of a profile, write its checksums anew, and return the file that an error must name.

    Files are replaced, never written into: they may be hard links.
    """
    record = unseal((profile / PROFILE_FILE).read_bytes(), ProfileRecord)
    tensors = list(record.tensors)
    place = random.randrange(len(tensors))
    named = PROFILE_FILE
    if kind in RECORD_KINDS:
        _reseal(profile, record.model_copy(update=RECORD_KINDS[kind](random, record)))
        return named
    if kind in TENSOR_KINDS:
        tensors[place] = tensors[place].model_copy(update=TENSOR_KINDS[kind](random, tensors[place]))
        if kind == "num_entries: off by some":
            named = _file(profile, tensors[place], "code")
    else:
        tensors[place], named = _forge_file(random, profile, record, tensors[place], kind)
        if kind == "start: a boundary moved":
            named = _file(profile, tensors[place], "code")  # where it shows
    _reseal(profile, record.model_copy(update={"tensors": tuple(tensors)}))
    return named


def reseal_unchanged(profile: Path) -> None:
    """Write every file of a profile anew as it is: the way of `forge`, without a forgery."""
    record = unseal((profile / PROFILE_FILE).read_bytes(), ProfileRecord)
    for tensor in record.tensors:
        arrays = _read(profile, record, tensor)
        for name, values in arrays.arrays.items():
            content = encode_chunk(values)
            assert _write(profile, tensor, name, content) == tensor
    _reseal(profile, record)


def _forge_file(
    random: random.Random, profile: Path, record: ProfileRecord, tensor: TensorRecord, kind: str
) -> tuple[TensorRecord, str]:
    if kind in ARRAY_KINDS:
        name, values = ARRAY_KINDS[kind](random, _read(profile, record, tensor))
        content = encode_chunk(values)
    else:
        name = random.choice(tuple(tensor_specs(tensor)))
        body = bytearray((profile / _file(profile, tensor, name)).read_bytes()[:-CRC_BYTES])
        forged = bytes(BODY_KINDS[kind](random, body))
        content = forged + google_crc32c.value(forged).to_bytes(CRC_BYTES, "little")
    return _write(profile, tensor, name, content), _file(profile, tensor, name)


def _read(profile: Path, record: ProfileRecord, tensor: TensorRecord) -> TensorProfile:
    return StoredProfile(profile, record).read(tensor)


def _file(profile: Path, tensor: TensorRecord, name: str) -> str:
    return str(chunk_path(profile, tensor_specs(tensor)[name], 0).relative_to(profile))


def _write(profile: Path, tensor: TensorRecord, name: str, content: bytes) -> TensorRecord:
    """Replace an array's file, and return the record with its checksum."""
    file = profile / _file(profile, tensor, name)
    file.unlink()
    file.write_bytes(content)
    names = tuple(tensor_specs(tensor))
    crcs = dict(zip(names, tensor.crcs or (), strict=True)) | {name: chunk_crc(content)}
    digests = dict(zip(names, tensor.sha256 or (), strict=True))
    digests[name] = hashlib.sha256(content).hexdigest()
    return tensor.model_copy(
        update={
            "crcs": tuple(crcs[one] for one in names),
            "sha256": tuple(digests[one] for one in names),
        }
    )


def _reseal(profile: Path, record: ProfileRecord) -> None:
    file = profile / PROFILE_FILE
    file.unlink()
    # As by someone who holds the user's key: what is looked at here is what comes after the seal.
    record = record.model_copy(update={"seal": own_seal(record, "profile")})
    file.write_text(seal(record, indent=1))


def _with(values: NDArray[Any], place: int, value: int) -> NDArray[Any]:
    changed = values.copy()
    changed[place] = value
    return changed


def _swapped(values: NDArray[Any], one: int, other: int) -> NDArray[Any]:
    changed = values.copy()
    changed[[one, other]] = changed[[other, one]]
    return changed


def _far(random: random.Random) -> int:
    return random.choice(_FAR) * random.choice((-1, 1))


def _followed(random: random.Random, tensor: TensorProfile) -> int:
    """Return an entry that another one of its segment follows."""
    ends = np.isin(np.arange(1, len(tensor.code) + 1), tensor.start)
    return int(random.choice(np.flatnonzero(~ends).tolist()))


def _segment(random: random.Random, tensor: TensorProfile) -> slice:
    """Return the entries of a segment of at least two."""
    number = random.choice(np.flatnonzero(np.diff(tensor.start) > 1).tolist())
    return slice(int(tensor.start[number]), int(tensor.start[number + 1]))


def _out_of_range(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    value = random.choice((-random.choice(_FAR), len(tensor.code) + random.choice(_FAR)))
    return "start", _with(tensor.start, random.randrange(len(tensor.start)), value)


def _unordered(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    one = random.randrange(len(tensor.start))
    others = np.flatnonzero(tensor.start != tensor.start[one]).tolist()
    return "start", _swapped(tensor.start, one, random.choice(others))


def _moved_boundary(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    """Give a segment's first entry, whose code is no larger than those before, to the segment before."""
    start, code = tensor.start, tensor.code
    inner = np.arange(1, len(start) - 1)
    inner = inner[(start[inner] > start[inner - 1]) & (start[inner + 1] > start[inner])]
    inner = inner[code[start[inner]] <= code[start[inner] - 1]]
    place = random.choice(inner.tolist())
    return "start", _with(start, place, int(start[place]) + 1)


def _ends_elsewhere(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    return "start", _with(tensor.start, -1, int(tensor.start[-1]) + _far(random))


def _unordered_code(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    place = _followed(random, tensor)
    return "code", _swapped(tensor.code, place, place + 1)


def _repeated_code(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    place = _followed(random, tensor)
    return "code", _with(tensor.code, place + 1, int(tensor.code[place]))


def _reversed_codes(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    segment, code = _segment(random, tensor), tensor.code.copy()
    code[segment] = code[segment][::-1]
    return "code", code


def _code_beyond(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    value = random.randrange(1 << 15, 1 << 16)
    return "code", _with(tensor.code, random.randrange(len(tensor.code)), value)


def _counted_never(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    count = tensor.count.copy()
    count[random.sample(range(len(count)), random.choice((1, 2, len(count))))] = 0
    return "count", count


def _no_maximum(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    largest, absmax = MAX_FINITE_CODE[tensor.record.dtype], tensor.absmax.copy()
    value = random.choice(
        (random.randrange(largest + 1, 0x8000), 0x8000 | random.randrange(largest + 1, 0x7FFE))
    )
    absmax[random.randrange(absmax.shape[0]), random.randrange(absmax.shape[1])] = value
    return "absmax", absmax


def _other_length(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    name = random.choice(tuple(tensor.arrays))
    values = tensor.arrays[name]
    kept = random.randrange(len(values))
    return name, random.choice((values[:kept], np.concatenate([values, values[kept:]])))


def _other_width(random: random.Random, tensor: TensorProfile) -> tuple[str, NDArray[Any]]:
    name = random.choice(tuple(tensor.arrays))
    wider = {"start": np.int32, "count": np.uint64}.get(name.removeprefix("outlier_"), np.uint32)
    return name, tensor.arrays[name].astype(wider)


ARRAY_KINDS: Final[dict[str, ForgeArray]] = {
    "start: shifted": lambda random, tensor: ("start", tensor.start + _far(random)),
    "start: out of range": _out_of_range,
    "start: unordered": _unordered,
    "start: reversed": lambda _, tensor: ("start", tensor.start[::-1]),
    "start: a boundary moved": _moved_boundary,
    "start: ends elsewhere": _ends_elsewhere,
    "start: all 0": lambda _, tensor: ("start", np.zeros_like(tensor.start)),
    "code: beyond 15 bits": _code_beyond,
    "code: unordered": _unordered_code,
    "code: twice": _repeated_code,
    "code: a cell reversed": _reversed_codes,
    "count: 0": _counted_never,
    "absmax: no maximum": _no_maximum,
    "an array: cut or too long": _other_length,
    "an array: of other integers": _other_width,
}


def _lying_header(random: random.Random, body: bytearray) -> bytearray:
    """Say another size, packed (at 12) or unpacked (at 4)."""
    at = random.choice((4, 12))
    said = int.from_bytes(body[at : at + 4], "little")
    wrong = random.choice((said + 1, said // 2, 0, 1 << 31, (1 << 32) - 1, said + (1 << 20)))
    body[at : at + 4] = wrong.to_bytes(4, "little")
    return body


def _cut_and_said(random: random.Random, body: bytearray) -> bytearray:
    body = body[: random.randrange(20, len(body))]
    body[12:16] = len(body).to_bytes(4, "little")
    return body


def _other_begin(random: random.Random, body: bytearray) -> bytearray:
    """Let the first packed block begin beyond the file, or cut it where it has no blocks."""
    if body[2] & _STORED_AS_IT_IS:
        return _cut_and_said(random, body)
    body[16:20] = random.choice((len(body), len(body) + 4, (1 << 31) - 1, (1 << 32) - 1)).to_bytes(
        4, "little"
    )
    return body


BODY_KINDS: Final[dict[str, ForgeBody]] = {
    "a file: cut": lambda random, body: body[: random.randrange(len(body))],
    "a file: cut, and says so": _cut_and_said,
    "a file: lies about its size": _lying_header,
    "a file: begins beyond its end": _other_begin,
}


def _other_heads(random: random.Random, tensor: TensorRecord) -> dict[str, Any]:
    heads = tensor.kv_heads
    wrong: Sequence[tuple[int, ...]] = (
        (*heads, heads[-1] + 1), heads[:-1], (), heads[::-1], heads * 2, (-1, *heads[1:]),
        (*heads[:-1], 1 << 40),
    )  # fmt: skip
    return {"kv_heads": random.choice(wrong)}


def _other_head_dim(random: random.Random, tensor: TensorRecord) -> dict[str, Any]:
    head_dim = tensor.head_dim
    return {"head_dim": random.choice((head_dim * 2, head_dim - 1, 0, -1, -head_dim, *_HUGE))}


def _entries_off(random: random.Random, tensor: TensorRecord) -> dict[str, Any]:
    num_entries = tensor.num_entries
    return {"num_entries": random.choice((num_entries - 1, num_entries + 1, num_entries // 2, 0))}


def _other_channels(random: random.Random, tensor: TensorRecord) -> dict[str, Any]:
    heads, head_dim = len(tensor.kv_heads), tensor.head_dim
    wrong = (((0,),) * (heads + 1), ((-1,),) * heads, ((head_dim,),) * heads, ((1, 0),) * heads)
    return {"outlier_channels": random.choice((*wrong, (tuple(range(head_dim)),) * heads))}


def _channels_without_counts(random: random.Random, tensor: TensorRecord) -> dict[str, Any]:
    channels = ((random.randrange(tensor.head_dim),),) * len(tensor.kv_heads)
    return {"outlier_channels": channels, "num_outlier_entries": 1, "crcs": tensor.crcs and tensor.crcs[:4]}


TENSOR_KINDS: Final[dict[str, ForgeTensor]] = {
    "kv_heads: others": _other_heads,
    "head_dim: another": _other_head_dim,
    "dtype: another": lambda random, _: {"dtype": random.choice(("float16", "float32"))},
    "num_entries: out of range": lambda random, _: {"num_entries": random.choice((-1, -(10**6), *_HUGE))},
    "num_entries: off by some": _entries_off,
    "crcs: too few or many": lambda random, tensor: {
        "crcs": (*(tensor.crcs or ()), 0)[random.choice((0, 2)) :]
    },
    "outlier_channels: impossible": _other_channels,
    "outlier_channels: some that nothing counts": _channels_without_counts,
    "num_outlier_entries: out of range": lambda random, _: {
        "num_outlier_entries": random.choice((-1, -(10**6), *_HUGE))
    },
    "layer: not in the trace": lambda random, _: {"layer": random.choice((1, 99, -1, 1 << 40))},
}


def _one_out(random: random.Random, record: ProfileRecord) -> dict[str, Any]:
    return {"tensors": tuple(random.sample(record.tensors, random.randrange(len(record.tensors))))}


def _one_twice(random: random.Random, record: ProfileRecord) -> dict[str, Any]:
    return {"tensors": (*record.tensors, random.choice(record.tensors))}


def _other_tokens(random: random.Random, record: ProfileRecord) -> dict[str, Any]:
    num_tokens = record.num_tokens
    return {"num_tokens": random.choice((num_tokens + 1, num_tokens - 1, 0, -num_tokens, *_HUGE))}


def _other_chunks(random: random.Random, record: ProfileRecord) -> dict[str, Any]:
    num_chunks = record.num_chunks
    return {"num_chunks": random.choice((num_chunks + 1, num_chunks - 1, 0, -num_chunks, *_HUGE))}


def _impossible_cell(random: random.Random, record: ProfileRecord) -> dict[str, Any]:
    cells = list(record.cells)
    wrong = random.choice((
        {"workload": "nobody's"}, {"sampling_id": 77}, {"sampling_id": -1}, {"position_octave": -1},
        {"request_group": -(1 << 40)},
    ))  # fmt: skip
    place = random.randrange(len(cells))
    cells[place] = cells[place].model_copy(update=wrong)
    return {"cells": tuple(cells)}


def _number_of_cells(random: random.Random, record: ProfileRecord) -> dict[str, Any]:
    first = record.cells[0]
    many = [first.model_copy(update={"position_octave": i}) for i in range(record.num_tokens + 1)]
    return {"cells": random.choice(((), tuple(many), (*record.cells, random.choice(record.cells))))}


RECORD_KINDS: Final[dict[str, ForgeRecord]] = {
    "tensors: some lacking": _one_out,
    "tensors: one twice": _one_twice,
    "num_tokens: another": _other_tokens,
    "num_chunks: another": _other_chunks,
    "cells: one impossible": _impossible_cell,
    "cells: none, too many, twice": _number_of_cells,
}

KINDS: Final = (*ARRAY_KINDS, *BODY_KINDS, *TENSOR_KINDS, *RECORD_KINDS)
