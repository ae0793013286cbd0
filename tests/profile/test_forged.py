"""Profiles that no trace can have, as a sender would write them: refused before compiled code sees them."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pytest
from faults.damage import copy_trace
from faults.forged import judge_process, judge_reading
from faults.forgeries import ARRAY_KINDS, BODY_KINDS, KINDS, forge, reseal_unchanged
from faults.fuzz import Fuzz
from faults.scratch import scratch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.run_cli import kvtrace

from kvtrace.numerics.compiled import cache_write
from kvtrace.numerics.counted import counted_errors, segment_sums
from kvtrace.profile.cpu_kernel import count_magnitudes
from kvtrace.profile.ready import ready_profile
from kvtrace.profile.store import find_profile, verify_profiles
from kvtrace.trace.cells import find_cells
from kvtrace.trace.chunks import CRC_BYTES, decode_chunk, encode_chunk
from kvtrace.trace.format import ArraySpec, seal
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY, PROFILE_FILE
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.trace.reader import Trace

DIRECTORIES = (PROFILE_DIRECTORY, GROUPS_DIRECTORY)
NUM_FILE_KINDS = len(ARRAY_KINDS) + len(BODY_KINDS)
IN_FRESH_PROCESSES = [
    *random.Random(13).sample(range(NUM_FILE_KINDS), 8),
    *random.Random(13).sample(range(NUM_FILE_KINDS, len(KINDS)), 4),
]


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    """Yield a small real trace with both profiles."""
    with scratch() as folder:
        yield Fuzz(folder)


@pytest.fixture
def trace(fuzz: Fuzz) -> Iterator[Path]:
    """Yield a copy of the small trace."""
    path = fuzz.folder / "copy" / "small.kvtrace"
    copy_trace(fuzz.base, path)
    yield path
    shutil.rmtree(path.parent)


@pytest.fixture(scope="module")
def opened(fuzz: Fuzz) -> Trace:
    """Return an open copy of the small trace."""
    path = fuzz.folder / "opened" / "small.kvtrace"
    copy_trace(fuzz.base, path)
    return open_trace(path)


@given(st.sampled_from(KINDS), st.sampled_from(DIRECTORIES), st.integers(0, 2**32))
@settings(max_examples=250, deadline=None)
def test_a_profile_that_no_trace_can_have_is_refused_by_every_reader(
    fuzz: Fuzz, opened: Trace, kind: str, directory: str, seed: int
) -> None:
    for name in DIRECTORIES:
        shutil.rmtree(opened.path / name)
        copy_trace(fuzz.base / name, opened.path / name)
    judge_reading(opened, directory, forge(random.Random(seed), opened.path / directory, kind))


@pytest.mark.parametrize("number", IN_FRESH_PROCESSES, ids=KINDS.__getitem__)
def test_a_command_refuses_it_in_one_line_and_ends_by_itself(fuzz: Fuzz, number: int) -> None:
    assert judge_process(fuzz.base, fuzz.folder, 13, number).problem == ""


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_profile_whose_checksums_are_made_anew_over_the_same_content_is_believed(
    trace: Path, directory: str
) -> None:
    reseal_unchanged(trace / directory)
    opened = open_trace(trace)
    profile = find_profile(opened, directory)
    assert profile is not None
    assert len(list(profile.tensors())) == 6
    verify_profiles(opened)


def test_the_advice_helps(trace: Path) -> None:
    forge(random.Random(0), trace / "profile", "start: shifted")
    run = trace.parent / "run"
    refused = kvtrace("replay", trace, "-o", run)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"Delete {trace / 'profile'}: the profile is made again" in refused.stderr
    shutil.rmtree(trace / "profile")
    assert kvtrace("replay", trace, "-o", run).returncode == 0


def test_nothing_advises_to_delete_impossible_counts_that_are_the_only_ones(trace: Path) -> None:
    for chunks in trace.glob("rank-*.zarr/layers/*/*/c"):
        shutil.rmtree(chunks)
    for kind in ("code: twice", "num_tokens: another"):
        forge(random.Random(0), trace / "profile", kind)
        refused = kvtrace("replay", trace, "-o", trace.parent / "run")
        assert refused.returncode == 2
        assert "Copy it again from where it came" in refused.stderr
        assert "Delete" not in refused.stderr


def test_cells_that_the_trace_can_have_but_has_not_are_made_again(trace: Path) -> None:
    opened = open_trace(trace)
    profile = find_profile(opened)
    assert profile is not None
    record = profile.record.model_copy(update={"cells": profile.record.cells[::-1]})
    (trace / "profile" / PROFILE_FILE).unlink()
    (trace / "profile" / PROFILE_FILE).write_text(seal(record))
    with ready_profile(opened, find_cells(opened), "cpu") as ready:
        assert ready.were_read
        assert ready.profile.is_over(find_cells(opened))


def test_a_chunk_that_was_cut_before_its_checksum_was_made_is_refused_before_blosc_reads_on() -> None:
    spec = ArraySpec(path="x", dtype="uint16", attributes={"axes": ["entry"]})
    values = np.random.default_rng(0).integers(0, 1 << 15, 20_000).astype(np.uint16)
    whole = encode_chunk(values)
    assert (decode_chunk(whole, spec, 20_000) == values).all()
    body = whole[:-CRC_BYTES]
    for kept in (16, 100, len(body) - 1):
        cut = body[:kept]
        content = cut + google_crc32c.value(cut).to_bytes(CRC_BYTES, "little")
        with pytest.raises(ValueError, match=rf"its header says {len(body):,} bytes, it has {kept:,}"):
            decode_chunk(content, spec, 20_000)


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize("start", [[1, 2], [0, 3], [0, 2, 1, 2], [-2, 2]])
def test_no_kernel_takes_segments_beyond_the_entries(start: list[int]) -> None:
    code, place, count = np.zeros(2, np.uint16), np.zeros(2, np.uint32), np.ones(2)
    write = cache_write("vllm-cuda", "e4m3fn", "bfloat16")
    with pytest.raises(AssertionError, match="leads out of the entries"):
        counted_errors(ONE, place, count, np.array(start), ONE, write)
    with pytest.raises(AssertionError, match="leads out of the entries"):
        segment_sums(code, count, np.array(start), ONE)


def test_no_kernel_takes_a_magnitude_or_row_that_is_not_there() -> None:
    write = cache_write("vllm-cuda", "e4m3fn", "bfloat16")
    with pytest.raises(AssertionError, match="magnitude is not there"):
        counted_errors(ONE, np.ones(1, np.uint32), np.ones(1), np.array([0, 1]), ONE, write)
    values = np.zeros((3, 1, 4), np.uint16)
    for rows, cell_start in (([0, 3], [0, 2]), ([-1, 0], [0, 2]), ([0, 1], [0, 3]), ([0, 1], [1, 0])):
        with pytest.raises(AssertionError):
            count_magnitudes(values, np.array(rows), np.array(cell_start))
