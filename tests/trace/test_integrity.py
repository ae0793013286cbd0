"""Damaged traces, pinned: some of what `make faults` draws at random, over every kind of file."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from faults.damage import Damage, apply_damage, copy_trace, files_of, kind_of_file
from faults.fuzz import Fuzz
from faults.scratch import scratch
from support.run_cli import kvtrace

from kvtrace.errors import EmptyTraceError, IntegrityError
from kvtrace.profile.store import find_profile
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAMED, NO_EFFECT = "named", "no effect"


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    """Yield a small real trace with a profile, and what it gives undamaged."""
    with scratch() as folder:
        yield Fuzz(folder)


@pytest.fixture
def trace(fuzz: Fuzz) -> Iterator[Path]:
    """Yield a copy of the small trace."""
    path = fuzz.folder / "copy" / "t.kvtrace"
    copy_trace(fuzz.base, path)
    yield path
    shutil.rmtree(path.parent)


def damage(kind: str, file: str, detail: str = "", other: str = "") -> Damage:
    return Damage(kind, file, kind_of_file(file), detail, other)


V = "rank-0.zarr/layers/14/v/c/1/0/0"


@pytest.mark.parametrize(
    "one",
    [
        damage("flip", "trace.json", "300 4"),
        damage("remove", "trace.json"),
        damage("flip", "requests.jsonl", "10 255"),
        damage("remove", "requests.commit.json"),
        damage("flip", "sampling.commit.json", "12 1"),
        damage("cut", "rank-1.zarr/rank.json", "900"),
        damage("swap", "rank-0.zarr/rank.json", "", "rank-1.zarr/rank.json"),
        damage("swap", "rank-0.zarr/commit.json", "", "rank-1.zarr/commit.json"),
        damage("remove", "rank-1.zarr/commit.json"),
        damage("remove folder", "rank-1.zarr"),
        damage("remove", "rank-0.zarr/layers/29/k/zarr.json"),
        damage("cut", "rank-0.zarr/rows/kv/position/c/2", "0"),
        damage("swap", "rank-0.zarr/rows/kv/position/c/1", "", "rank-0.zarr/rows/kv/position/c/2"),
        damage("flip", V, "999 16"),
        damage("append", V, "00000000"),
        damage("swap", V, "", "rank-0.zarr/layers/14/k/c/1/0/0"),
        damage("copy", V, "", "rank-0.zarr/layers/14/v/c/2/0/0"),
    ],
    ids=str,
)
def test_damage_to_what_numbers_are_made_of_is_named_by_every_reader(fuzz: Fuzz, one: Damage) -> None:
    found = fuzz.read(one)
    assert [found[way] for way in ("read", "replay", "inspect --verify")] == [NAMED] * 3


@pytest.mark.parametrize(
    "one",
    [
        damage("append", "requests.jsonl", b'{"request": 7}\n'.hex()),  # beyond what its commit covers
        damage("remove", "rank-0.zarr/layers/zarr.json"),  # a group's: plain zarr's alone
        damage("flip", "profile/profile.json", "40 2"),  # an unreadable profile is made again
        damage("remove folder", "profile"),
    ],
    ids=str,
)
def test_damage_to_what_no_number_is_made_of_has_no_effect(fuzz: Fuzz, one: Damage) -> None:
    found = fuzz.read(one)
    assert [found[way] for way in ("read", "replay", "inspect --verify")] == [NO_EFFECT] * 3


@pytest.mark.parametrize(
    "one",
    [
        damage("flip", "profile/layers/14/k/count/c/0", "30 1"),
        damage("swap", "profile/layers/14/k/absmax/c/0/0", "", "profile/layers/14/v/absmax/c/0/0"),
        damage("cut", "profile/chunks/size/c/0", "3"),
    ],
    ids=str,
)
def test_a_damaged_array_of_a_valid_profile_is_named_where_the_profile_is_used(
    fuzz: Fuzz, one: Damage
) -> None:
    found = fuzz.read(one)
    assert [found[way] for way in ("read", "replay", "inspect --verify")] == [NO_EFFECT, NAMED, NAMED]


def test_a_flip_that_keeps_size_and_time_below_a_valid_profile_is_found_by_verify_alone(trace: Path) -> None:
    apply_damage(trace, damage("flip unseen", V, "999 16"))
    assert find_profile(open_trace(trace)) is not None
    assert kvtrace("inspect", trace).returncode == 0
    result = kvtrace("inspect", trace, "--verify")
    assert result.returncode == 2
    assert V in result.stderr
    os.utime(trace / V)  # another time, and the profile is not believed without a look at the chunk
    with pytest.raises(IntegrityError, match=V):
        find_profile(open_trace(trace))


@pytest.mark.parametrize("name", ["requests.jsonl", "sampling.jsonl", "rank-0.zarr/dropped.jsonl"])
def test_lines_that_were_cut_off_at_a_lines_end_are_missed(trace: Path, name: str) -> None:
    lines = (trace / name).read_bytes().splitlines(keepends=True)
    apply_damage(trace, damage("cut at a line", name, str(len(b"".join(lines[:-1])))))
    with pytest.raises(IntegrityError, match=rf"{name}: has [\d,]+ bytes, .* it was cut"):
        open_trace(trace)


def test_a_trace_of_format_1_0_is_read_and_a_swapped_chunk_in_it_is_found(
    fuzz: Fuzz, trace: Path, as_format_1_0: Callable[[Path], None]
) -> None:
    as_format_1_0(trace)
    assert len(open_trace(trace).tokens) == len(fuzz.original.tokens)
    apply_damage(trace, damage("swap", V, "", "rank-0.zarr/layers/14/k/c/1/0/0"))
    with pytest.raises(IntegrityError, match="row chunk 1 are not those that commit"):
        open_trace(trace)


def test_a_trace_whose_rows_all_lack_their_requests_says_so(trace: Path) -> None:
    record = open_trace(trace).record.model_copy(update={"line_commits": False})
    from kvtrace.trace.format import seal

    for name, content in (("trace.json", seal(record)), ("requests.jsonl", "")):
        (trace / name).unlink()
        (trace / name).write_text(content)
    (trace / "requests.commit.json").unlink()
    with pytest.raises(EmptyTraceError, match="none of its committed rows counts"):
        open_trace(trace)


def test_every_kind_of_file_of_a_trace_is_known_to_the_fuzz(fuzz: Fuzz) -> None:
    kinds = {kind_of_file(file) for file in files_of(fuzz.base)}
    assert kinds == {
        *("trace.json", "requests.jsonl", "requests.commit.json", "sampling.jsonl", "sampling.commit.json"),
        *("rank.json", "commit.json", "dropped.jsonl", "dropped.commit.json", "row chunk", "tensor chunk"),
        *("array zarr.json", "group zarr.json", "profile.json", "profile array", "profile chunk list"),
        "profile zarr.json",
    }


@pytest.fixture
def as_format_1_0() -> Callable[[Path], None]:
    """Return what takes from a trace's records the fields that format 1.0 did not have."""
    from kvtrace.trace.format import CommitRecord, RankRecord, seal
    from kvtrace.trace.requests import read_sealed

    def take_back(trace: Path) -> None:
        record = open_trace(trace).record.model_copy(update={"line_commits": False, "schema_version": "1.0"})
        new = {trace / "trace.json": seal(record)}
        for store in trace.glob("rank-*.zarr"):
            rank = read_sealed(store / "rank.json", RankRecord).model_copy(update={"line_commits": False})
            commit = read_sealed(store / "commit.json", CommitRecord)
            chunks = tuple(chunk.model_copy(update={"crcs": None}) for chunk in commit.chunks)
            commit = commit.model_copy(update={"chunks": chunks, "rank": None})
            new |= {store / "rank.json": seal(rank), store / "commit.json": seal(commit)}
        for path, content in new.items():
            path.unlink()
            path.write_text(content)
        for commit_file in (*trace.glob("*.commit.json"), *trace.glob("rank-*.zarr/dropped.commit.json")):
            commit_file.unlink()

    return take_back
