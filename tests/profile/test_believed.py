"""When a profile is believed, made again or refused, and which traces can be profiled at all."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.counted_trace import CPU, make_trace

from kvtrace.errors import IntegrityError
from kvtrace.profile import store
from kvtrace.profile.build import profile_tensors
from kvtrace.profile.own_seal import own_seal
from kvtrace.profile.ready import can_be_profiled, has_tensors, ready_profile
from kvtrace.profile.store import find_profile, write_profile
from kvtrace.trace.cells import find_cells
from kvtrace.trace.format import seal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.reader import Trace

CHUNK = "rank-0.zarr/layers/00/k/c/1/0/0"
NUM_TENSORS = 4  # two layers, K and V


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return make_trace(tmp_path / "t.kvtrace")


@pytest.fixture
def stored(trace: Trace) -> StoredProfile:
    """The profile, kept in the trace."""
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        return ready.profile


def with_its_time(file: Path, content: bytes) -> None:
    """Write a file as a defect below the file system would: its modification time stays."""
    times = file.stat().st_mtime_ns
    file.write_bytes(content)
    os.utime(file, ns=(times, times))


@pytest.mark.parametrize(("version", "is_believed"), [("1.9", True), ("2.0", False)])
def test_a_profile_of_another_major_version_is_not_believed(
    trace: Trace, stored: StoredProfile, version: str, is_believed: bool
) -> None:
    record = stored.record.model_copy(update={"schema_version": version})
    record = record.model_copy(update={"seal": own_seal(record, "profile")})
    (stored.path / "profile.json").write_text(seal(record))
    assert (find_profile(trace) is not None) == is_believed


def test_a_cut_chunk_is_found_damaged_though_it_kept_its_time(trace: Trace, stored: StoredProfile) -> None:
    chunk = trace.path / CHUNK
    with_its_time(chunk, chunk.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match="layers/00/k/c/1/0/0"):
        find_profile(trace)


def test_one_chunk_of_another_time_has_the_checksums_of_all_chunks_looked_at(
    trace: Trace, stored: StoredProfile
) -> None:
    other = trace.path / "rank-0.zarr/layers/01/v/c/2/0/0"
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    with_its_time(other, bytes(content))
    assert find_profile(trace) is not None, "times and sizes are those of the profile"
    os.utime(trace.path / CHUNK, ns=(5, 5))
    with pytest.raises(IntegrityError, match="layers/01/v/c/2/0/0"):
        find_profile(trace)


def test_a_chunk_that_changed_while_it_was_profiled_is_looked_at_again(trace: Trace) -> None:
    cells, chunk = find_cells(trace), trace.path / CHUNK

    def tensors() -> Iterator[TensorProfile]:
        yield from profile_tensors(trace, cells, CPU)
        chunk.write_bytes(b"\0" * chunk.stat().st_size)
        os.utime(chunk, ns=(5, 5))

    write_profile(trace, cells, tensors(), trace.path / "profile")
    with pytest.raises(IntegrityError, match="layers/00/k/c/1/0/0"):
        find_profile(trace)


@pytest.mark.parametrize("num_fitting", range(NUM_TENSORS + 1))
def test_every_pass_over_a_profile_gives_all_tensors_however_few_are_kept_in_memory(
    trace: Trace, stored: StoredProfile, monkeypatch: pytest.MonkeyPatch, num_fitting: int
) -> None:
    sizes = [tensor.num_bytes for tensor in stored.tensors()]
    monkeypatch.setattr(store, "_KEEP_BYTES", sum(sizes[:num_fitting]))
    found = find_profile(trace)
    assert found is not None
    passes = [[(one.record.layer, one.record.tensor) for one in found.tensors()] for _ in range(2)]
    assert passes == [[(0, "k"), (0, "v"), (1, "k"), (1, "v")]] * 2


def test_a_profile_over_as_many_other_cells_is_not_over_these(trace: Trace, stored: StoredProfile) -> None:
    cells = find_cells(trace)
    assert stored.is_over(cells)
    assert not stored.is_over(replace(cells, octave=cells.octave + 1))


def test_one_layer_in_float32_is_enough_that_a_trace_cannot_be_profiled(trace: Trace) -> None:
    layers = {**trace.layers, 1: replace(trace.layers[1], dtype="float32")}
    assert can_be_profiled(trace)
    assert not can_be_profiled(replace(trace, layers=layers))


def test_a_trace_that_misses_one_chunk_still_has_tensors(trace: Trace) -> None:
    (trace.path / CHUNK).unlink()
    assert has_tensors(trace)


def test_a_trace_that_must_not_be_written_is_profiled_beside_it_and_left_as_it_is(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As root, who runs tests in a container, no mode of a directory would do.
    monkeypatch.setattr(os, "access", lambda *_: False)
    names = {path.name for path in trace.path.iterdir()}
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        assert ready.were_read
        assert not ready.profile.path.is_relative_to(trace.path)
        assert len(list(ready.profile.tensors())) == NUM_TENSORS
    assert not ready.profile.path.exists()
    assert {path.name for path in trace.path.iterdir()} == names
    assert ready.note == (
        "cannot be written, so its counts are not kept: the next replay reads its tensors again"
    )
