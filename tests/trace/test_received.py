"""A trace from a stranger, every checksum right: one validation at the door names the file and the field."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pytest
from fuzz.of_arrays import recommit
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.errors import IntegrityError
from kvtrace.trace.chunks import encode_chunk
from kvtrace.trace.format import RankRecord, array_specs
from kvtrace.trace.lines import LinesCommit
from kvtrace.trace.reader import open_trace
from kvtrace.trace.sealed import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE, RANK, COMMIT = "trace.json", "rank-1.zarr/rank.json", "rank-1.zarr/commit.json"
REQUESTS, SAMPLING, DROPPED = "requests.jsonl", "sampling.jsonl", "rank-1.zarr/dropped.jsonl"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers on two ranks, of two KV heads each."""
    random = np.random.default_rng(20)
    return fabricate_trace(
        tmp_path_factory.mktemp("received") / "sound.kvtrace",
        {(layer, t): random.normal(size=(40, 4, 8)) for layer in range(2) for t in "kv"},
        request_of_row=[0] * 40,
        position_of_row=range(40),
        requests=[request(0, prompt_tokens=40)],
        ranks=[(0, 1), (2, 3)],
        rows_per_chunk=32,
    )


@pytest.fixture
def trace(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "t.kvtrace"))


def resealed(content: dict[str, Any]) -> str:
    """Return the JSON with its checksum made anew."""
    content.pop("crc32c", None)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps(content | {"crc32c": f"{google_crc32c.value(canonical.encode()):08x}"})


def change(trace: Path, file: str, path: str, value: Any) -> None:
    """Set one field of a record, or of the last line of a file of lines, and make every checksum anew."""
    *lines, last = (
        (trace / file).read_text().splitlines() if file.endswith("l") else [(trace / file).read_text()]
    )
    content = place = json.loads(last)
    *parents, field = path.split(".")
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    place[int(field) if isinstance(place, list) else field] = value
    write(trace, file, [*lines, resealed(content)])


def write(trace: Path, file: str, lines: list[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    (trace / file).write_text(text)
    commit = trace / file.replace(".jsonl", ".commit.json")
    if file.endswith("l") and commit.exists():
        crc = f"{google_crc32c.value(text.encode()):08x}"
        commit.write_text(
            seal(LinesCommit(num_bytes=len(text.encode()), num_lines=len(lines), content_crc32c=crc))
        )


FIELDS = [
    (TRACE, "engine.tensor_parallel_size", 10**9),
    (TRACE, "engine.pipeline_parallel_size", 0),
    (TRACE, "engine.block_size", -1),
    (TRACE, "model.num_layers", 10**7),
    (TRACE, "model.num_kv_heads", -1),
    (TRACE, "model.head_dim", 10**30),
    (TRACE, "model.max_model_len", 10**12),
    (TRACE, "created_at", 1e30),
    (TRACE, "created_at", "NaN"),
    (RANK, "rows_per_chunk", 10**12),
    (RANK, "rows_per_chunk", 0),
    (RANK, "rows_per_chunk", -32),
    (RANK, "layers.0.head_dim_k", -1),
    (RANK, "layers.1.head_dim_v", 10**6),
    (RANK, "layers.1.index", 10**7),
    (RANK, "layers.1.index", -1),
    (RANK, "layers.0.kv_heads", [2, -3]),
    (RANK, "layers.0.kv_heads", [2, 10**30]),
    (COMMIT, "chunks.0.num_rows", -1),
    (COMMIT, "chunks.0.digest", "no hexadecimal"),
    (COMMIT, "chunks.0.crcs", "wxyz" * 16),
    (COMMIT, "cost", {"hook_s": 1e30}),
    (REQUESTS, "request", 10**30),
    (REQUESTS, "request", -2),
    (REQUESTS, "prompt_tokens", -1),
    (REQUESTS, "computed_tokens", 10**12),
    (REQUESTS, "missing", [[0, 10**12]]),
    (REQUESTS, "arrived_at", 1e30),
    (REQUESTS, "workload", "9" * 10**5),
    (SAMPLING, "position_stride", 0),
    (SAMPLING, "position_stride", -16),
    (SAMPLING, "request_fraction", 1e30),
    (SAMPLING, "request_fraction", "NaN"),
    (SAMPLING, "byte_budget", -1),
]


@pytest.mark.parametrize(("file", "field", "value"), FIELDS, ids=lambda value: str(value)[:30])
def test_a_number_beyond_what_can_be_is_refused_with_its_file_and_field(
    trace: Path, file: str, field: str, value: Any
) -> None:
    change(trace, file, field, value)
    refused = kvtrace("inspect", trace)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert f"{trace / file}: " in refused.stderr
    assert f"({field}" in refused.stderr.replace("line 1 is damaged (", "(")
    assert len(refused.stderr) < 600


DISAGREEMENTS = {
    "heads twice": (RANK, "layers.0.kv_heads", [2, 2], "layers.0: kv_heads has 2 twice"),
    "heads shared in part": (RANK, "layers.0.kv_heads", [1, 3], "layer 0 shares KV head 1 with another rank"),
    "no heads": (RANK, "layers.0.kv_heads", [], "without a KV head"),
    "a layer twice": (RANK, "layers.1.index", 0, "layers has index 0 twice"),
    "too few scales": (RANK, "layers.0.k_scale", [], "k_scale has 0 values"),
    "too many scales": (RANK, "layers.0.v_scale", [1.0] * 3, "v_scale has 3 values"),
    "other dtype": (RANK, "layers.1.dtype", "float16", "zarr.json"),
    "other name": (RANK, "layers.1.name", "a\x1b[31mb", "layer 1 has another name than in rank-0.zarr"),
    "other cache": (RANK, "layers.1.kv_cache_dtype", "fp8", "has another kv_cache_dtype"),
    "captured by one": (RANK, "layers.1.captured", False, "checksums a chunk"),
    "lost twice": (COMMIT, "chunks.0.lost", ["layers/00/k"] * 2, "chunks.0.lost names an array twice"),
    "lost rows": (COMMIT, "chunks.0.lost", ["rows/kv/request"], "not a tensor of rank.json"),
}


@pytest.mark.parametrize(("file", "field", "value", "expected"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_what_could_be_read_in_two_ways_is_refused(
    trace: Path, file: str, field: str, value: Any, expected: str
) -> None:
    change(trace, file, field, value)
    for arguments in (("inspect", trace), ("replay", trace, "-o", trace.parent / "run")):
        refused = kvtrace(*arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert expected in refused.stderr
        assert "\x1b" not in refused.stderr
    assert not (trace.parent / "run").exists()


def test_sampling_rules_of_one_id_twice_are_refused(trace: Path) -> None:
    write(trace, SAMPLING, (trace / SAMPLING).read_text().splitlines() * 2)
    with pytest.raises(IntegrityError, match="has the rules of sampling_id 0 twice"):
        open_trace(trace)


def test_a_key_twice_in_a_record_is_refused(trace: Path) -> None:
    text = (trace / TRACE).read_text()
    (trace / TRACE).write_text(text.replace('"trace_id"', '"trace_id": "other", "trace_id"', 1))
    with pytest.raises(IntegrityError, match="the same key twice"):
        open_trace(trace)


@pytest.mark.parametrize("column", ["position", "step", "sampling_id"])
def test_a_negative_row_is_refused(trace: Path, column: str) -> None:
    file = f"rows/kv/{column}/c/0"
    values = np.arange(32, dtype=np.int64 if column == "step" else np.int32)
    values[3] = -5
    (trace / "rank-1.zarr" / file).write_bytes(encode_chunk(values))
    store = trace / "rank-1.zarr"
    recommit(store, array_specs(unseal((store / "rank.json").read_bytes(), RankRecord)))
    with pytest.raises(IntegrityError, match=rf"rank-1.zarr/rows/kv/{column}: has -5, expected no negative"):
        open_trace(trace)


def test_checksums_that_their_digest_does_not_cover_are_refused(trace: Path) -> None:
    crcs = json.loads((trace / COMMIT).read_text())["chunks"][0]["crcs"]
    change(trace, COMMIT, "chunks.0.crcs", "0" * 8 + crcs[8:])
    with pytest.raises(
        IntegrityError, match=r"rank-1.zarr/commit.json: chunks.0.digest is not the one of its"
    ):
        open_trace(trace)


def test_a_trace_that_leaves_a_chunk_out_is_another_trace(trace: Path) -> None:
    before = open_trace(trace).digest
    change(trace, COMMIT, "chunks.0.lost", ["layers/00/k"])
    assert open_trace(trace).digest != before


BOMBS = {
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "empty lists": b'{"a": [' + b"[]," * 5_000_000 + b"1]}",
    "an endless number": b'{"a": ' + b"9" * 100_000 + b"}",
    "half of a pair": b'{"trace_id": "\\ud800", "schema_version": "1.2", "crc32c": "0"}',
    "no number": b'{"a": NaN}',
    "too large": b" " * 64_000_001,
}


@pytest.mark.parametrize("file", [TRACE, RANK, COMMIT, REQUESTS])
@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_json_made_to_fill_the_memory_or_the_stack_is_one_line(
    trace: Path, file: str, content: bytes
) -> None:
    (trace / file).write_bytes(content + b"\n")
    refused = kvtrace("inspect", trace)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert str(trace / file) in refused.stderr
    assert len(refused.stderr) < 600


def plant(kind: str, path: Path) -> Iterator[None]:
    """Put something that is no regular file in a file's place."""
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a link to itself":
        path.symlink_to(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        short = Path("/tmp") / f"kvtrace-{os.getpid()}.sock"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(short))
            path.symlink_to(short)
            yield
        short.unlink()
        return
    yield


FILES = (
    TRACE, REQUESTS, SAMPLING, "sampling.commit.json", RANK, COMMIT, DROPPED, "rank-1.zarr/rows/kv/step/c/0",
    "rank-1.zarr/layers/00/k/c/0/0/0", "rank-1.zarr/layers/01/v/zarr.json",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["a pipe", "a directory", "a link to itself", "a device", "a socket"])
def test_what_is_no_regular_file_is_named_and_nothing_waits_for_it(trace: Path, kind: str) -> None:
    for number, file in enumerate(FILES):
        own = trace.parent / f"{number}.kvtrace"
        shutil.copytree(trace, own)
        (own / file).touch()
        planted = plant(kind, own / file)
        next(planted)
        refused = kvtrace("inspect", own)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused
        assert str(own / file) in refused.stderr
        repaired = kvtrace("inspect", own, "--repair", "-o", trace.parent / f"new-{number}")
        assert repaired.returncode in (0, 2)
        next(planted, None)


def test_more_workloads_than_can_be_counted_are_refused_by_a_replay_and_inspected(tmp_path: Path) -> None:
    rows = 17_000
    path = fabricate_trace(
        tmp_path / "many.kvtrace",
        {(0, t): np.zeros((rows, 1, 1)) for t in "kv"},
        request_of_row=range(rows),
        position_of_row=[0] * rows,
        requests=[request(n, prompt_tokens=1, workload=f"w{n}") for n in range(rows)],
        rows_per_chunk=4096,
    )
    refused = kvtrace("replay", path, "-o", tmp_path / "run")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "has 17,000 cells" in refused.stderr
    assert len(json.loads(kvtrace("inspect", path, "--json").stdout)["coverage"]) == rows


def test_ranks_that_are_missing_are_not_all_listed(trace: Path) -> None:
    change(trace, TRACE, "engine.tensor_parallel_size", 4000)
    refused = kvtrace("inspect", trace)
    assert "rank-9.zarr and 3,990 more missing" in refused.stderr


def test_a_chunk_that_unpacks_to_more_than_its_place_is_refused_before_it_is_unpacked(trace: Path) -> None:
    (trace / "rank-1.zarr/layers/00/k/c/0/0/0").write_bytes(encode_chunk(np.zeros(1 << 26, np.uint16)))
    refused = kvtrace("inspect", trace, "--verify")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "layers/00/k/c/0/0/0" in refused.stderr
