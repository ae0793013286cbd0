"""What `--verify` compares, and that a run says for what its tensors were read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvtrace.candidates import GivenScales
from kvtrace.errors import ReplayMismatchError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.evaluation.direct import replay_directly
from kvtrace.evaluation.sums import Vectors, sums_alone
from kvtrace.evaluation.verify import VectorCheck, check_equal
from kvtrace.profile.ready import ready_profile
from kvtrace.trace.cells import find_cells
from tests.profile.test_build import CPU, apply_keys, make_trace, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.candidates.candidate import Candidate
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.reader import Trace


def clipping(trace: Trace) -> Candidate:
    """Scales that cover 0.448 of values with a standard deviation of 3: most are clipped."""
    return GivenScales("clipping", dict.fromkeys(apply_keys(trace), 0.001))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return make_trace(tmp_path_factory.mktemp("verify") / "t.kvtrace")


@pytest.fixture(scope="module")
def sums(trace: Trace) -> list[TensorSums]:
    """Layer 0's K first."""
    applied = clipping(trace).scales_for(trace)
    assert applied is not None
    return list(sums_alone(replay_directly(trace, find_cells(trace), [applied], CPU)))


@pytest.fixture(scope="module")
def stored(trace: Trace) -> StoredProfile:
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        return ready.profile


@pytest.fixture(scope="module")
def vectors(trace: Trace) -> list[Vectors]:
    """Of every block, as the element-wise replay meets them; token 0 of layer 0's K first."""
    replayed = replay_directly(trace, find_cells(trace), [], CPU)
    return [value for value in replayed if isinstance(value, Vectors)]


def changed(sums: TensorSums, part: str, name: str, to: Any) -> TensorSums:
    """Return the sums with the first element of one array made `to(element)`."""
    own = getattr(sums, part)
    array = getattr(own, name).copy()
    array.flat[0] = to(array.flat[0])
    return replace(sums, **{part: replace(own, **{name: array})})


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("values", "num_vectors"),
        ("values", "num_values"),
        ("values", "num_nonfinite"),
        ("values", "max_code"),
        ("errors", "num_out_of_range"),
        ("errors", "num_clipped"),
        ("errors", "num_flushed"),
    ],
)
def test_a_count_that_is_off_by_one_is_named(sums: list[TensorSums], part: str, name: str) -> None:
    first, *others = sums
    with pytest.raises(ReplayMismatchError, match=rf"layer 0 k, {name}\[0(, 0)+\]"):
        check_equal([changed(first, part, name, lambda count: count + 1), *others], sums)


@pytest.mark.parametrize(
    ("part", "name"),
    [("values", "sum_sq_signal"), ("errors", "sum_sq_error"), ("errors", "sum_sq_clip_error")],
)
def test_a_squared_sum_may_differ_in_its_last_bits_and_no_more(
    sums: list[TensorSums], part: str, name: str
) -> None:
    first, *others = sums
    assert getattr(getattr(first, part), name).flat[0] > 0
    check_equal([changed(first, part, name, lambda x: x * (1 + 1e-12)), *others], sums)
    with pytest.raises(ReplayMismatchError, match=rf"layer 0 k, {name}\[0(, 0)+\]"):
        check_equal([changed(first, part, name, lambda x: x * (1 + 1e-7)), *others], sums)


def test_a_tensor_that_one_of_the_two_paths_lacks_is_named(sums: list[TensorSums]) -> None:
    with pytest.raises(ReplayMismatchError, match="layer 0 k: the profile lacks it"):
        check_equal(sums[1:], sums)
    with pytest.raises(ReplayMismatchError, match="layer 0 k: the element-wise replay lacks it"):
        check_equal(sums, sums[1:])


def test_a_vector_of_the_profile_that_never_came_is_named(
    stored: StoredProfile, vectors: list[Vectors]
) -> None:
    whole, lacking = VectorCheck(stored), VectorCheck(stored)
    for one in vectors:
        whole.add(one)
    whole.finish()
    for one in vectors[1:]:
        lacking.add(one)
    with pytest.raises(ReplayMismatchError, match="layer 0 k, vector of token 0, KV head 0"):
        lacking.finish()


def test_a_vector_whose_nan_and_inf_the_profile_does_not_know_is_named(
    stored: StoredProfile, vectors: list[Vectors]
) -> None:
    with_nan = replace(vectors[0], has_nonfinite=~vectors[0].has_nonfinite)
    with pytest.raises(ReplayMismatchError, match="layer 0 k, vector of token 0, KV head 0"):
        VectorCheck(stored).add(with_nan)


def test_a_vector_that_comes_twice_is_named(stored: StoredProfile, vectors: list[Vectors]) -> None:
    check = VectorCheck(stored)
    check.add(vectors[0])
    with pytest.raises(ReplayMismatchError, match="layer 0 k, vector of token 0, KV head 0"):
        check.add(vectors[0])


def test_a_run_says_whether_tensors_were_read_for_a_profile_for_groups_or_to_verify(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace")
    runs: list[dict[str, Any]] = [{}, {}, {"intervals": True}, {"intervals": True}, {"method": "verify"}]
    found = [
        source_of(
            replay(ReplayRequest([trace], [clipping(trace)], **options), tmp_path / str(number))
        ).tensors_reread
        for number, options in enumerate(runs)
    ]
    assert found == [True, False, True, False, True]
