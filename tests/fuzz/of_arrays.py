"""Random arrays, every checksum right: through the reader to all compiled code that indexes with them."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from faults.damage import copy_trace

from fuzz.odd import replace, sealed
from fuzz.of_traces import remove_tensors
from kvtrace.formats.named import FORMATS as CACHE_FORMATS
from kvtrace.numerics.captured import MAX_FINITE_CODE
from kvtrace.profile.own_seal import own_seal
from kvtrace.trace.chunks import CRC_BYTES, chunk_crc, chunk_path, encode_chunk
from kvtrace.trace.format import COMMIT_FILE, RANK_FILE, RankRecord, array_specs, seal, unseal
from kvtrace.trace.profile_format import (
    GROUPS_DIRECTORY,
    PROFILE_DIRECTORY,
    PROFILE_FILE,
    ProfileRecord,
    tensor_specs,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from numpy.random import Generator
    from numpy.typing import NDArray

    from fuzz.bases import Bases
    from kvtrace.trace.format import ArraySpec

    Fill = Callable[[Generator, NDArray[Any]], NDArray[Any]]
    """(a source of chance, the array that is there) → another of its shape and dtype"""


def _any_bits(chance: Generator, values: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(chance.bytes(values.nbytes), values.dtype).reshape(values.shape)


def _one_value(chance: Generator, values: NDArray[Any]) -> NDArray[Any]:
    return np.full_like(values, _any_bits(chance, values[:1]).reshape(-1)[0])


def _shuffled(chance: Generator, values: NDArray[Any]) -> NDArray[Any]:
    return chance.permutation(values.reshape(-1)).reshape(values.shape)


def _small(chance: Generator, values: NDArray[Any]) -> NDArray[Any]:
    return chance.integers(0, 40, values.shape).astype(values.dtype)


def _few_changed(chance: Generator, values: NDArray[Any]) -> NDArray[Any]:
    changed = values.copy()
    places = chance.integers(0, max(values.size, 1), 3)
    changed.reshape(-1)[places] = _any_bits(chance, values).reshape(-1)[places]
    return changed


def _used_alone(fill: Fill) -> Fill:
    """Return the fill of a column of rows: none is negative, and those that are not in use stay so."""

    def filled(chance: Generator, values: NDArray[Any]) -> NDArray[Any]:
        return np.where(values < 0, values, fill(chance, values) & np.iinfo(values.dtype).max)

    return filled


FILLS: Final[tuple[Fill, ...]] = (_any_bits, _one_value, _shuffled, _small, _few_changed)


def tensors(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Fill chunks of K and V with random bits: NaN, inf and subnormals among them."""
    base = random.choice((*bases.traces.values(), bases.float32, bases.counted))
    return _refilled(base, random, folder, lambda spec: bool(spec.row_shape), _any_bits, _one_value)


def formats(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Fill chunks of traces of odd widths, and replay them under a cache format."""
    base = random.choice((*bases.odd_widths, *bases.traces.values(), bases.float32))
    _refilled(base, random, folder, lambda spec: bool(spec.row_shape), _any_bits, _one_value)
    name = random.choice([name for name in CACHE_FORMATS if name != "auto"])
    return ("replay", folder / "t.kvtrace", "-o", folder / "out", "--cache-dtype", name)


def rows_of_queries(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Fill arrays of the stores that a capture of queries leaves."""
    stores = ("queries-0.zarr", "queries-1.zarr", "context-0.zarr", "context-1.zarr")
    is_rows = random.random() < 0.7
    fills = tuple(map(_used_alone, FILLS)) if is_rows else (_any_bits, _one_value)
    return _refilled(
        bases.queried, random, folder, lambda spec: bool(spec.row_shape) != is_rows, *fills, stores=stores
    )


def rows(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Fill columns of rows: whose request and position a vector is, and by which rules it was sampled."""
    base = random.choice((*bases.traces.values(), bases.counted))
    column = random.choice(("request", "position", "position", "step", "step", "sampling_id"))
    fills = FILLS if random.random() < 0.1 else tuple(map(_used_alone, FILLS))
    return _refilled(base, random, folder, lambda spec: spec.path.endswith(f"kv/{column}"), *fills)


def counts(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Fill arrays of a profile, sealed as by the user's own key: what the seal does not keep away."""
    trace, chance = folder / "t.kvtrace", np.random.default_rng(random.getrandbits(63))
    copy_trace(bases.counted, trace)
    directory = trace / random.choice((PROFILE_DIRECTORY, GROUPS_DIRECTORY))
    record = unseal((directory / PROFILE_FILE).read_bytes(), ProfileRecord)
    are_possible = random.random() < 0.5
    changed = []
    for tensor in record.tensors:
        crcs, digests = list(tensor.crcs or ()), list(tensor.sha256 or ())
        specs = tensor_specs(tensor)
        arrays = {name: _read(chunk_path(directory, spec, 0), spec) for name, spec in specs.items()}
        made = _possible(chance, arrays) if are_possible else _impossible(random, chance, arrays)
        for place, (name, spec) in enumerate(specs.items()):
            content = encode_chunk(made.get(name, arrays[name]))
            replace(chunk_path(directory, spec, 0), content)
            crcs[place], digests[place] = chunk_crc(content), hashlib.sha256(content).hexdigest()
        changed.append(tensor.model_copy(update={"crcs": tuple(crcs), "sha256": tuple(digests)}))
    record = record.model_copy(update={"tensors": tuple(changed)})
    record = record.model_copy(update={"seal": own_seal(record, "profile")})
    replace(directory / PROFILE_FILE, seal(record))
    if are_possible or random.random() < 0.5:  # beside tensors, possible ones of one's own are believed
        remove_tensors(trace)
    return ("replay", trace, "-o", folder / "out", "--intervals", "--scales", bases.scales)


def scales(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Write a checkpoint of random scales: what bounds are searched with."""
    artifact, chance = folder / "artifact", np.random.default_rng(random.getrandbits(63))
    artifact.mkdir()
    header, data = {}, b""
    dtype, width = random.choice((("F32", 4), ("F32", 4), ("BF16", 2), ("F16", 2), ("F64", 8)))
    alike = random.choice((1, 4))
    for layer in range(2):
        for tensor in "kv":
            num_values = random.choice((*[alike] * 20, 3, 0))
            own = _scale_bytes(random, chance, num_values * width)
            name = f"model.layers.{layer}.self_attn.{tensor}_scale"
            offsets = [len(data), len(data) + len(own)]
            header[name] = {"dtype": dtype, "shape": [num_values], "data_offsets": offsets}
            data += own
    text = json.dumps(header).encode()
    (artifact / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (artifact / "config.json").write_bytes((bases.scales / "config.json").read_bytes())
    engine = random.choice(("vllm-cuda", "vllm-triton", "vllm-cpu", "sglang"))
    base = random.choice((bases.counted, bases.counted, bases.traces["float16"]))
    trace = folder / "t.kvtrace"
    copy_trace(base, trace)
    return ("replay", trace, "-o", folder / "out", "--scales", artifact, "--engine", engine)


def _scale_bytes(random: random.Random, chance: Generator, num_bytes: int) -> bytes:
    """Return any bits, or float32 that are positive and finite and so believed."""
    if random.random() < 0.5:
        return chance.bytes(num_bytes)
    return np.exp2(chance.uniform(-126, 127, num_bytes // 4 + 1)).astype(np.float32).tobytes()[:num_bytes]


def _refilled(
    base: Path,
    random: random.Random,
    folder: Path,
    is_meant: Callable[[ArraySpec], bool],
    *fills: Fill,
    stores: tuple[str, ...] = ("rank-0.zarr", "rank-1.zarr"),
) -> tuple[object, ...]:
    trace, chance = folder / "t.kvtrace", np.random.default_rng(random.getrandbits(63))
    copy_trace(base, trace)
    store = trace / random.choice([name for name in stores if (trace / name).exists()])
    specs = array_specs(unseal((store / RANK_FILE).read_bytes(), RankRecord))
    shares = random.choice((0.1, 0.5, 1.0))
    for spec in filter(is_meant, specs):
        for file in sorted((store / spec.path / "c").rglob("*")):
            if file.is_file() and random.random() < shares:
                values = random.choice(fills)(chance, _read(file, spec))
                replace(file, encode_chunk(values))
    recommit(store, specs)
    return _replay(random, trace, folder)


def recommit(store: Path, specs: list[ArraySpec]) -> None:
    """Commit the chunk files of a store as they are now."""
    commit, previous = json.loads((store / COMMIT_FILE).read_text()), b""
    request = next(spec for spec in specs if spec.path.startswith("rows/") and spec.path.endswith("/request"))
    for number, chunk in enumerate(commit["chunks"]):
        ends = [chunk_path(store, spec, number).read_bytes()[-CRC_BYTES:] for spec in specs]
        previous = hashlib.sha256(previous + b"".join(ends)).digest()
        used = _read(chunk_path(store, request, number), request) != -1
        chunk |= {
            "crcs": "".join(f"{int.from_bytes(end, 'little'):08x}" for end in ends),
            "digest": previous.hex(),
            "num_rows": int(used.sum()),
        }
    replace(store / COMMIT_FILE, sealed(commit))


def _read(file: Path, spec: ArraySpec) -> NDArray[Any]:
    from numcodecs import Blosc

    body = Blosc().decode(file.read_bytes()[:-CRC_BYTES])
    return np.frombuffer(body, spec.dtype).reshape(-1, *spec.row_shape)


def _possible(chance: Generator, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return counts of other magnitudes, as many as there are and none above the largest of its segment.

    Where outlier channels are counted apart, none: the two would have to agree.
    """
    if "outlier_code" in arrays:
        return {}
    code, count, start = arrays["code"].copy(), arrays["count"].copy(), arrays["start"]
    for begin, end in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
        if end - begin > 1:
            below = chance.choice(int(code[end - 1]), end - begin - 1, replace=False)
            code[begin : end - 1] = np.sort(below)
            count[begin:end] = chance.permutation(count[begin:end])
    return {"code": code, "count": count}


def _impossible(
    random: random.Random, chance: Generator, arrays: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return a few arrays that some check must refuse, or that are what they were."""
    made = {}
    for name, values in arrays.items():
        if random.random() < 0.7:
            continue
        made[name] = random.choice(FILLS)(chance, values)
        kind = name.removeprefix("outlier_")
        if kind == "start" and random.random() < 0.5:
            inner = np.sort(chance.integers(0, values[-1] + 1, len(values) - 2))
            made[name] = np.concatenate([[0], inner, values[-1:]]).astype(values.dtype)
        elif kind == "count" and random.random() < 0.5:
            made[name] = chance.integers(1, 1 << 32, values.shape).astype(values.dtype)
        elif name == "absmax" and random.random() < 0.5:
            largest = MAX_FINITE_CODE["bfloat16"]
            made[name] = chance.integers(0, largest + 1, values.shape).astype(values.dtype)
    return made


def _replay(random: random.Random, trace: Path, folder: Path) -> tuple[object, ...]:
    output = ("-o", folder / "out")
    options = random.choice(
        ((), (), (), ("--direct",), ("--verify",), ("--intervals",), ("--online", "fp8-per-token-head"))
    )
    if random.random() < 0.15:
        return ("calibrate", trace, *output, "--method", random.choice(("mse", "absmax")))
    return ("replay", trace, *output, *options)
