"""A profile that was not made here is counted again; one whose counts are false is found by --verify."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.counted_trace import CPU, make_trace
from support.run_cli import kvtrace

from kvtrace.errors import InputError, IntegrityError
from kvtrace.profile import numpy_kernel
from kvtrace.profile.cpu_kernel import count_magnitudes
from kvtrace.profile.own_seal import KEY_VARIABLE, is_own, own_seal
from kvtrace.profile.ready import ready_profile
from kvtrace.profile.store import find_profile, verify_profiles, write_profile
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.format import seal, unseal
from kvtrace.trace.profile_format import PROFILE_FILE, ProfileRecord
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.profile.counts import TensorProfile
    from kvtrace.trace.reader import Trace

NUM_VALUES = 60 * 8  # rows × head_dim of one head, K or V


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """A trace with a profile made here."""
    made = make_trace(tmp_path / "t.kvtrace")
    with ready_profile(made, find_cells(made), CPU):
        pass
    return made


def counted(trace: Trace) -> list[int]:
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        return [int(tensor.count.sum()) for tensor in ready.profile.tensors()]


def with_counts(trace: Trace, change: Callable[[TensorProfile], dict[str, Any]]) -> None:
    """Write a profile with other counts, every checksum right, as a sender would: with another key."""
    cells = find_cells(trace)
    with ready_profile(trace, cells, CPU) as ready:
        tensors = [
            type(one)(**{name: getattr(one, name) for name in one.__slots__} | change(one))
            for one in ready.profile.tensors()
        ]
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv(KEY_VARIABLE, str(trace.path.parent / "senders.key"))
        write_profile(trace, cells, tensors, trace.path / "profile")


FALSE_COUNTS = {
    "doubled": lambda one: {"count": one.count * 2},
    "moved": lambda one: {"code": np.where(one.code > 16000, one.code + 1, one.code).astype(np.uint16)},
    "lowered": lambda one: {"count": np.maximum(one.count - 1, 1)},
}


@pytest.mark.parametrize("change", FALSE_COUNTS.values(), ids=FALSE_COUNTS)
def test_false_counts_of_a_sender_are_not_used_and_verify_finds_them(
    trace: Trace, change: Callable[[TensorProfile], dict[str, Any]]
) -> None:
    with_counts(trace, change)
    assert find_profile(trace) is None
    verified = kvtrace("inspect", trace.path, "--verify")
    assert (verified.returncode, verified.stderr.count("\n")) == (2, 1)
    assert f"{trace.path}/profile/layers/" in verified.stderr
    assert counted(trace) == [3 * NUM_VALUES] * 4


def test_a_profile_made_elsewhere_is_counted_again_and_said_so_and_then_it_is_made_here(
    trace: Trace, tmp_path: Path
) -> None:
    with_counts(trace, lambda _: {})
    verified = json.loads(kvtrace("inspect", trace.path, "--verify", "--json").stdout)
    assert verified["profiles"] == {"profile": "made elsewhere"}
    first, second = (kvtrace("replay", trace.path, "-o", tmp_path / name) for name in ("one", "two"))
    assert (first.returncode, second.returncode) == (0, 0)
    assert "its profile was not made here with your key, so its tensors were counted again" in first.stderr
    assert "was not made here" not in second.stderr
    assert "made here, was counted again and is the same" in kvtrace("inspect", trace.path, "--verify").stdout


def test_changed_arrays_under_a_seal_are_damage(trace: Trace) -> None:
    record = unseal((trace.path / "profile" / PROFILE_FILE).read_bytes(), ProfileRecord)
    assert is_own(record, "profile")
    first = record.tensors[0]
    tensors = (
        first.model_copy(update={"sha256": ("0" * 64, *(first.sha256 or ())[1:])}),
        *record.tensors[1:],
    )
    changed = record.model_copy(update={"tensors": tensors})
    assert not is_own(changed, "profile")
    changed = changed.model_copy(update={"seal": own_seal(changed, "profile")})
    (trace.path / "profile" / PROFILE_FILE).write_text(seal(changed))
    profile = find_profile(trace)
    assert profile is not None
    with pytest.raises(IntegrityError, match="its SHA-256 is not the one"):
        list(profile.tensors())


def test_the_seal_of_one_kind_of_record_is_none_of_another(trace: Trace) -> None:
    record = unseal((trace.path / "profile" / PROFILE_FILE).read_bytes(), ProfileRecord)
    assert not is_own(record, "online sums")


def test_counts_that_are_all_that_is_left_are_held_against_their_vectors(trace: Trace) -> None:
    with_counts(trace, FALSE_COUNTS["doubled"])
    for chunks in trace.path.glob("rank-*.zarr/layers/*/*/c"):
        shutil.rmtree(chunks)
    alone = open_trace(trace.path)
    with pytest.raises(IntegrityError, match=r"count/c/0: is invalid \(KV head 0, cell 0 counts"):
        counted(alone)
    with_own = make_trace(trace.path.parent / "other.kvtrace")
    with_counts(with_own, lambda _: {})
    for chunks in with_own.path.glob("rank-*.zarr/layers/*/*/c"):
        shutil.rmtree(chunks)
    assert counted(open_trace(with_own.path)) == [3 * NUM_VALUES] * 4


def test_group_profiles_are_recounted_too(trace: Trace) -> None:
    with ready_profile(trace, find_group_cells(trace), CPU, directory="profile-groups"):
        pass
    assert verify_profiles(trace) == {"profile": "made here", "profile-groups": "made here"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused_with_what_to_do(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    key = tmp_path / "my.key"
    key.write_bytes(bytes(32))
    key.chmod(mode)
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    with pytest.raises(InputError, match=rf"my.key: .* with mode {mode:04o}.*chmod 600"):
        find_profile(trace)


def test_a_key_behind_a_link_is_refused(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real.key").write_bytes(bytes(32))
    (tmp_path / "my.key").symlink_to(tmp_path / "real.key")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "my.key"))
    with pytest.raises(InputError, match=r"my.key: .* is a link"):
        find_profile(trace)


def test_without_a_place_for_a_key_the_counts_serve_once_and_that_is_said(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(trace.path / "profile")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "file" / "no.key"))
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        assert ready.note == (
            "its counts are not sealed, as no key can be made: the next replay reads its tensors again"
        )
    assert find_profile(trace) is None


def test_the_default_key_is_the_users_own_and_private(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert find_profile(trace) is None, "it was made with another key"
    key = tmp_path / "settings/kvtrace/seal.key"
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777, key.stat().st_uid) == (32, 0o600, os.geteuid())


def test_both_ways_to_count_agree_on_any_values() -> None:
    random = np.random.default_rng(3)
    values = random.integers(0, 1 << 16, (50, 3, 16), np.uint16)
    rows = random.permutation(50)[:41]
    cell_start = np.array([0, 0, 7, 30, 30, 41])
    compiled = count_magnitudes(values, rows, cell_start)
    for one, other in zip(compiled, numpy_kernel.count_magnitudes(values, rows, cell_start), strict=True):
        assert one.dtype == other.dtype
        assert (one == other).all()
