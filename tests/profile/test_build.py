from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fabricate import bits, fabricate_trace, request

from kvtrace.candidates import GivenScales, ServingSetup
from kvtrace.errors import IntegrityError, ReplayMismatchError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.evaluation import gpu_kernel as evaluation_gpu_kernel
from kvtrace.evaluation.direct import replay_directly
from kvtrace.evaluation.evaluate import evaluate_tensor
from kvtrace.evaluation.profiled import replay_profile, vectors_of
from kvtrace.evaluation.scale_batch import scales_of_tensor
from kvtrace.evaluation.sums import sums_alone
from kvtrace.evaluation.verify import check_equal, verified
from kvtrace.numerics import ENGINES, counted
from kvtrace.profile import cpu_kernel, gpu_kernel
from kvtrace.profile.build import profile_tensors
from kvtrace.profile.counts import PartialCounts, TensorProfile, add_counts
from kvtrace.profile.ready import ready_profile
from kvtrace.profile.store import find_profile, write_profile
from kvtrace.runs.record import RunRecord
from kvtrace.trace.cells import find_cells
from kvtrace.trace.format import unseal
from kvtrace.trace.profile_format import TensorRecord
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.trace.reader import Trace

CPU = "cpu"
PAIRS = [(name, fmt) for name, engine in ENGINES.items() for fmt in engine.formats]
ROWS, HEADS, HEAD_DIM = 60, 3, 8
REQUESTS = [
    request(0, prompt_tokens=30, output_tokens=10),
    request(1, prompt_tokens=20, workload="code"),
]


def make_trace(path: Path, tensors: dict[tuple[int, str], Any] | None = None, **options: Any) -> Trace:
    options = {
        "request_of_row": [0] * 40 + [1] * 20,
        "position_of_row": [*range(40), *range(20)],
        "requests": REQUESTS,
        "rows_per_chunk": 16,
    } | options
    return open_trace(fabricate_trace(path, tensors or normal_tensors(), **options))


def normal_tensors(seed: int = 0) -> dict[tuple[int, str], Any]:
    random = np.random.default_rng(seed)
    return {
        (layer, t): random.normal(0, 3, (ROWS, HEADS, HEAD_DIM)).astype(np.float32)
        for layer in range(2)
        for t in "kv"
    }


def profile_of(trace: Trace, **options: Any) -> dict[tuple[int, str], TensorProfile]:
    tensors = profile_tensors(trace, find_cells(trace), CPU, **options)
    return {(t.record.layer, t.record.tensor): t for t in tensors}


def counts_of(profile: TensorProfile) -> dict[tuple[int, int], dict[int, int]]:
    """(head, cell) → code → count."""
    found = {}
    for head in range(len(profile.record.kv_heads)):
        for cell in range(profile.num_cells):
            i = head * profile.num_cells + cell
            part = slice(profile.start[i], profile.start[i + 1])
            code = profile.code[part].tolist()
            assert code == sorted(set(code))
            found[head, cell] = dict(zip(code, profile.count[part].tolist(), strict=True))
    return found


def test_the_counts_are_those_of_a_counter_over_the_values(tmp_path: Path) -> None:
    tensors = normal_tensors()
    tensors[1, "v"][7, 2] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 2.0, -2.0]
    trace = make_trace(tmp_path / "t.kvtrace", tensors)
    cells, tokens = find_cells(trace), trace.tokens
    for (layer, tensor), profile in profile_of(trace).items():
        row = np.where(tokens.request == 0, tokens.position, 40 + tokens.position)
        codes = bits(tensors[layer, tensor]) & 0x7FFF
        for (head, cell), found in counts_of(profile).items():
            values = codes[row[cells.of_token == cell], head]
            assert found == Counter(values.flatten().tolist())


@st.composite
def random_blocks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values [row, kv_head, head_dim] of few or many codes, rows sorted by cell, where cells begin."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_rows, num_heads = draw(st.integers(0, 40)), draw(st.integers(1, 4))
    head_dim, num_cells = draw(st.sampled_from([1, 3, 16, 64])), draw(st.integers(1, 5))
    palette = random.integers(0, 1 << 16, draw(st.sampled_from([1, 2, 50, 60_000])), dtype=np.uint16)
    if draw(st.booleans()):
        palette[:1] = [draw(st.sampled_from([0, 0x8000, 0x7FFF, 0x7F80, 1]))]
    values = random.choice(palette, (num_rows, num_heads, head_dim))
    used = random.permutation(num_rows)[: draw(st.integers(0, num_rows))]
    cell = np.sort(random.integers(0, num_cells, len(used)))
    return values, used.astype(np.int64), np.searchsorted(cell, np.arange(num_cells + 1))


@given(random_blocks())
@settings(max_examples=100, deadline=None)
def test_both_kernels_count_as_numpy_does(block: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    values, order, cell_start = block
    _, num_heads, _ = values.shape
    num_cells = len(cell_start) - 1
    expected_code, expected_count, start = [], [], [0]
    for head in range(num_heads):
        for cell in range(num_cells):
            rows = order[cell_start[cell] : cell_start[cell + 1]]
            code, count = np.unique(values[rows, head] & 0x7FFF, return_counts=True)
            expected_code.append(code)
            expected_count.append(count)
            start.append(start[-1] + len(code))
    expected_absmax = (values[order] & 0x7FFF).max(-1)
    for found in (
        cpu_kernel.count_magnitudes(values, order, cell_start),
        gpu_kernel.count_magnitudes(values, order, cell_start, CPU),
    ):
        np.testing.assert_array_equal(found[0], np.concatenate(expected_code))
        np.testing.assert_array_equal(found[1], np.concatenate(expected_count))
        np.testing.assert_array_equal(found[2], start)
        np.testing.assert_array_equal(found[3], expected_absmax)


@pytest.mark.gpu
def test_the_gpu_kernel_on_a_gpu_equals_the_cpu_kernel() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    random = np.random.default_rng(0)
    values = bits(random.normal(0, 3, (5000, 8, 128)))
    order = random.permutation(5000)
    cell_start = np.array([0, 10, 10, 3000, 5000])
    on_gpu = gpu_kernel.count_magnitudes(values, order, cell_start, "cuda")
    on_cpu = cpu_kernel.count_magnitudes(values, order, cell_start)
    for a, b in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_array_equal(a, b)


def test_partial_counts_add_up() -> None:
    def part(heads: tuple[int, ...], *segments: dict[int, int]) -> PartialCounts:
        code = np.array([c for s in segments for c in s], np.uint16)
        count = np.array([n for s in segments for n in s.values()], np.uint32)
        return PartialCounts(heads, code, count, np.cumsum([0, *map(len, segments)]))

    code, count, start = add_counts(
        [part((1,), {5: 2, 9: 1}, {7: 1}), part((0,), {}, {3: 4}), part((1,), {5: 1, 6: 8}, {})],
        num_heads=2,
        num_cells=2,
    )
    assert code.tolist() == [3, 5, 6, 9, 7]
    assert count.tolist() == [4, 3, 8, 1, 1]
    assert start.tolist() == [0, 0, 1, 4, 5]


def test_a_counter_holds_up_to_the_largest_uint32_and_more_is_an_error() -> None:
    def part(count: int) -> PartialCounts:
        return PartialCounts((0,), np.array([5], np.uint16), np.array([count], np.uint32), np.array([0, 1]))

    _, count, _ = add_counts([part(2**32 - 2), part(1)], num_heads=1, num_cells=1)
    assert count.tolist() == [2**32 - 1]
    with pytest.raises(OverflowError, match="more than 2\\^32 times"):
        add_counts([part(2**32 - 1), part(1)], num_heads=1, num_cells=1)


def test_all_cells_together_may_hold_more_than_a_uint32() -> None:
    record = TensorRecord(layer=0, tensor="k", kv_heads=(0,), head_dim=1, dtype="bfloat16", num_entries=2)
    code, count = np.array([5, 5], np.uint16), np.full(2, 2**32 - 1, np.uint32)  # in two cells
    profile = TensorProfile(record, code, count, np.array([0, 1, 2]), np.zeros((1, 1), np.uint16))
    assert profile.all_cells().count.tolist() == [2**33 - 2]


def test_a_magnitude_may_occur_more_than_65536_times_in_a_cell() -> None:
    values = np.zeros((2200, 1, 64), np.uint16)
    values[:, :, 32:] = 0x3F80  # 1.0: 2,200 · 32 = 70,400 times, as often as 0
    found = cpu_kernel.count_magnitudes(values, np.arange(2200), np.array([0, 2200]))
    code, count, start, _ = (array.tolist() for array in found)
    assert (code, count, start) == ([0, 0x3F80], [70_400, 70_400], [0, 2])


def same(left: dict[tuple[int, str], TensorProfile], right: dict[tuple[int, str], TensorProfile]) -> None:
    assert left.keys() == right.keys()
    for key, profile in left.items():
        for name in ("code", "count", "start", "absmax"):
            np.testing.assert_array_equal(getattr(profile, name), getattr(right[key], name))


def test_the_profile_does_not_depend_on_chunks_ranks_or_memory(tmp_path: Path) -> None:
    whole = profile_of(make_trace(tmp_path / "a.kvtrace", rows_per_chunk=64))
    small_chunks = make_trace(tmp_path / "b.kvtrace", rows_per_chunk=7)
    same(whole, profile_of(small_chunks))
    same(whole, profile_of(small_chunks, memory_bytes=1))  # every chunk counted apart, then added
    orders = [np.random.default_rng(r).permutation(ROWS).tolist() for r in range(2)]
    same(whole, profile_of(make_trace(tmp_path / "c.kvtrace", ranks=[[2, 0], [1]], rows_of_rank=orders)))


def test_absent_rows_and_vectors_without_finite_values_are_told_apart(tmp_path: Path) -> None:
    tensors = normal_tensors()
    tensors[0, "k"][0, 0] = np.nan
    tensors[0, "k"][1, 0, 0] = np.inf
    tensors[0, "k"][1, 0, 1:] = 1.0
    rows = [list(range(ROWS)), list(range(50))]
    trace = make_trace(tmp_path / "t.kvtrace", tensors, ranks=[[0, 1], [2]], rows_of_rank=rows)
    profile = profile_of(trace)[0, "k"]
    assert profile.absmax_code[:2, 0].tolist() == [-1, 0x3F80]
    assert profile.has_nonfinite[:3, 0].tolist() == [True, True, False]
    assert profile.is_present.sum(0).tolist() == [60, 60, 50]
    assert [len(v.row) for v in vectors_of(profile)] == [60, 60, 50]


@pytest.mark.parametrize(
    ("dtype", "code", "largest"),
    [("bfloat16", 0x7F7F, (2 - 2.0**-7) * 2.0**127), ("float16", 0x7BFF, (2 - 2.0**-10) * 2.0**15)],
)
def test_the_largest_finite_magnitude_of_a_dtype_is_finite(
    tmp_path: Path, dtype: str, code: int, largest: float
) -> None:
    tensors = normal_tensors()
    tensors[0, "k"][0, 0, 0] = largest
    tensors[0, "k"][1, 0, :2] = [-largest, np.nan]
    profile = profile_of(make_trace(tmp_path / "t.kvtrace", tensors, dtype=dtype))[0, "k"]
    assert profile.absmax_code[:2, 0].tolist() == [code, code]
    assert profile.has_nonfinite[:2, 0].tolist() == [False, True]


class TestStored:
    def test_a_second_use_reads_no_tensor(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", dict.fromkeys(apply_keys(trace), 0.01))]
        first = replay(ReplayRequest([trace], candidates), tmp_path / "run1")
        for chunk in trace.path.glob("rank-0.zarr/layers/*/*/c/*/0/0"):
            times = chunk.stat().st_mtime_ns
            chunk.write_bytes(b"\0" * chunk.stat().st_size)
            os.utime(chunk, ns=(times, times))  # a chunk that was read would be found damaged
        second = replay(ReplayRequest([trace], candidates), tmp_path / "run2")
        assert [source_of(run).tensors_reread for run in (first, second)] == [True, False]
        assert (first / "cells.parquet").read_bytes() == (second / "cells.parquet").read_bytes()

    def test_the_arrays_open_in_plain_zarr(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        with ready_profile(trace, find_cells(trace), CPU) as ready:
            expected = {(t.record.layer, t.record.tensor): t for t in ready.profile.tensors()}
        group = zarr.open_group(trace.path / "profile", mode="r")
        for (layer, tensor), profile in expected.items():
            for name in ("code", "count", "start", "absmax"):
                found = group[f"layers/{layer:02d}/{tensor}/{name}"][:]
                np.testing.assert_array_equal(found, getattr(profile, name))
        assert group["chunks/size"].shape == (len(trace.block_refs()),)

    def test_another_state_of_the_trace_is_profiled_anew(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        with ready_profile(trace, find_cells(trace), CPU):
            pass
        other = make_trace(tmp_path / "o.kvtrace", normal_tensors(seed=1))
        shutil.copytree(trace.path / "profile", other.path / "profile")
        assert find_profile(trace) is not None
        assert find_profile(other) is None
        with ready_profile(other, find_cells(other), CPU) as ready:
            assert ready.were_read
            same({(t.record.layer, t.record.tensor): t for t in ready.profile.tensors()}, profile_of(other))

    @pytest.mark.parametrize("content", [b"", b"{}", b"not json"])
    def test_a_damaged_record_is_not_believed(self, tmp_path: Path, content: bytes) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        with ready_profile(trace, find_cells(trace), CPU):
            pass
        (trace.path / "profile/profile.json").write_bytes(content)
        with ready_profile(trace, find_cells(trace), CPU) as ready:
            assert ready.were_read

    def test_a_damaged_array_is_named(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", dict.fromkeys(apply_keys(trace), 0.01))]
        replay(ReplayRequest([trace], candidates), tmp_path / "run1")
        array = trace.path / "profile/layers/01/k/count/c/0"
        content = bytearray(array.read_bytes())
        content[20] ^= 1
        array.write_bytes(content)
        with pytest.raises(IntegrityError, match="profile/layers/01/k/count"):
            replay(ReplayRequest([trace], candidates), tmp_path / "run2")
        assert not (tmp_path / "run2").exists()

    def test_a_missing_chunk_is_named_though_the_profile_is_whole(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        with ready_profile(trace, find_cells(trace), CPU):
            pass
        (trace.path / "rank-0.zarr/layers/01/v/c/2/0/0").unlink()
        with pytest.raises(IntegrityError, match="layers/01/v/c/2/0/0"):
            find_profile(trace)

    def test_a_changed_chunk_is_reread_and_found_damaged(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        with ready_profile(trace, find_cells(trace), CPU):
            pass
        chunk = trace.path / "rank-0.zarr/layers/00/k/c/1/0/0"
        os.utime(chunk)
        assert find_profile(trace) is not None, "a copied trace has other times and the same content"
        chunk.write_bytes(chunk.read_bytes()[:-9])
        with pytest.raises(IntegrityError, match="layers/00/k/c/1/0/0"):
            find_profile(trace)

    def test_a_copied_trace_is_reread_once(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        with ready_profile(trace, find_cells(trace), CPU):
            pass
        chunk = trace.path / "rank-0.zarr/layers/00/k/c/1/0/0"
        os.utime(chunk, ns=(5, 5))
        assert find_profile(trace) is not None
        chunk.write_bytes(b"\0" * chunk.stat().st_size)
        os.utime(chunk, ns=(5, 5))
        assert find_profile(trace) is not None, "its time is that of the check: it was not read again"

    def test_the_profile_stands_for_tensors_that_were_all_removed(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        candidates = [GivenScales("c", dict.fromkeys(apply_keys(trace), 0.01))]
        before = replay(ReplayRequest([trace], candidates), tmp_path / "run1")
        for chunks in trace.path.glob("rank-0.zarr/layers/*/*/c"):
            shutil.rmtree(chunks)
        after = replay(ReplayRequest([open_trace(trace.path)], candidates), tmp_path / "run2")
        assert (before / "cells.parquet").read_bytes() == (after / "cells.parquet").read_bytes()

    def test_an_interrupted_profile_leaves_nothing(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        names = {p.name for p in trace.path.iterdir()}

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with (
            pytest.raises(KeyboardInterrupt),
            ready_profile(trace, find_cells(trace), CPU, progress=interrupt),
        ):
            pass
        assert {p.name for p in trace.path.iterdir()} == names

    def test_a_kill_in_the_middle_leaves_neither_a_run_nor_a_profile(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        script = textwrap.dedent(
            """
            import os, signal, sys
            from kvtrace.candidates import Bf16
            from kvtrace.evaluation import ReplayRequest, replay
            from kvtrace.trace.reader import open_trace

            def kill(done, total):
                if done == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

            request = ReplayRequest([open_trace(sys.argv[1])], [Bf16()], method=sys.argv[3])
            replay(request, sys.argv[2], progress=kill)
            """
        )
        runs = [tmp_path / f"run-{method}" for method in ("profile", "direct")]
        killed = [
            subprocess.Popen([sys.executable, "-c", script, str(trace.path), str(run), run.name[4:]])
            for run in runs
        ]
        assert [process.wait() for process in killed] == [-signal.SIGKILL] * 2
        assert not any(run.exists() for run in runs)
        assert find_profile(trace) is None
        assert replay(
            ReplayRequest([trace], [GivenScales("c", dict.fromkeys(apply_keys(trace), 1.0))]), runs[0]
        ).exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_trace_that_cannot_be_written_is_profiled_for_the_command_alone(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace")
        trace.path.chmod(0o500)
        with ready_profile(trace, find_cells(trace), CPU) as ready:
            assert not ready.profile.path.is_relative_to(trace.path)
        trace.path.chmod(0o700)


def apply_keys(trace: Trace) -> list[tuple[int, int, str]]:
    return [(n, h, t) for n, layer in trace.layers.items() for h in layer.kv_heads for t in "kv"]


def source_of(run: Path) -> Any:
    return unseal((run / "run.json").read_bytes(), RunRecord).sources[0]


@st.composite
def random_traces(draw: st.DrawFn) -> tuple[dict[tuple[int, str], Any], dict[str, Any]]:
    """Tensors with ties, zeros, −0, NaN, inf and subnormals, and a split into chunks and ranks."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_rows, num_heads = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    shape = (num_rows, num_heads, draw(st.sampled_from([1, 4, 16])))
    dtype = draw(st.sampled_from(["bfloat16", "float16"]))
    spread = draw(st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 300.0]))
    specials = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 448.0, -464.0, 1.5 * 2.0**-9, 6e4])
    tensors = {}
    for key in ((0, "k"), (0, "v")):
        values = random.standard_t(2, shape) * spread
        chosen = random.random(shape) < draw(st.sampled_from([0.0, 0.2, 1.0]))
        tensors[key] = np.where(chosen, random.choice(specials, shape), values.clip(-6e4, 6e4))
    order = random.permutation(num_rows)
    first = draw(st.integers(0, num_rows))
    heads = list(range(num_heads))
    ranks = draw(st.sampled_from([[heads], [heads[::2], heads[1::2]] if num_heads > 1 else [heads]]))
    return tensors, {
        "request_of_row": [0 if i < first else 1 for i in range(num_rows)],
        "position_of_row": [i if i < first else i - first for i in range(num_rows)],
        "rows_of_rank": [order.tolist()] * len(ranks),
        "ranks": ranks,
        "rows_per_chunk": draw(st.sampled_from([7, 64])),
        "dtype": dtype,
        # Shorter than some requests' rows: the rest are decode.
        "requests": [
            request(n, prompt_tokens=draw(st.sampled_from([1, 13, 40])), output_tokens=40, workload=workload)
            for n, workload in enumerate(("chat", "code"))
        ],
    }


ENGINE_FORMATS = [
    ("vllm-cuda", "e4m3fn"), ("vllm-cuda", "e5m2"), ("vllm-cpu", "e4m3fn"), ("vllm-cpu", "e5m2"),
    ("vllm-rocm", "e4m3fnuz"), ("sglang", "e4m3fn"), ("sglang", "e5m2"),
]  # fmt: skip
SCALES = st.sampled_from([1e-30, 2.0**-9, 0.0022321429569274187, 0.013, 0.37, 1.0, 2.0, 1e4])


@given(random_traces(), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_profile_and_direct_replay_agree(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[dict[tuple[int, str], Any], dict[str, Any]],
    data: Any,
) -> None:
    tensors, options = case
    path = tmp_path_factory.mktemp("t") / "t.kvtrace"
    trace = open_trace(fabricate_trace(path, tensors, **options))
    applied = []
    for engine, fmt in data.draw(st.lists(st.sampled_from(ENGINE_FORMATS), min_size=1, max_size=4)):
        scales = {key: data.draw(SCALES) for key in apply_keys(trace)}
        candidate = GivenScales(engine, scales, ServingSetup(engine, fmt))
        applied.append(candidate.scales_for(trace))
    cells = find_cells(trace)
    with ready_profile(trace, cells, CPU) as ready:
        profiled = replay_profile(ready.profile, cells, applied, CPU)
        list(verified(ready.profile, profiled, replay_directly(trace, cells, applied, CPU)))
    shutil.rmtree(path.parent)


def test_heads_and_candidates_worked_on_in_small_parts_give_the_same_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = make_trace(tmp_path / "t.kvtrace")
    cells = find_cells(trace)
    applied = []
    for i in range(20):
        scales = {key: 0.001 * (1 + i) * (1 + key[1]) for key in apply_keys(trace)}
        candidate = GivenScales(str(i), scales, ServingSetup(skip_layers=(1,) if i % 3 == 0 else ()))
        applied.append(candidate.scales_for(trace))
    with ready_profile(trace, cells, CPU) as ready:
        together = list(sums_alone(replay_profile(ready.profile, cells, applied, CPU)))
        monkeypatch.setattr(counted, "_DENSE_COUNTERS", 1)
        check_equal(sums_alone(replay_profile(ready.profile, cells, applied, CPU)), together)
    check_equal(together, sums_alone(replay_directly(trace, cells, applied, CPU)))


@pytest.mark.parametrize("in_small_parts", [False, True])
def test_the_gpu_evaluation_gives_the_same_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_small_parts: bool
) -> None:
    if in_small_parts:
        monkeypatch.setattr(evaluation_gpu_kernel, "_COUNTERS_AT_ONCE", 1)
        monkeypatch.setattr(evaluation_gpu_kernel, "_ERRORS_AT_ONCE", 1)
    trace = make_trace(tmp_path / "t.kvtrace")
    cells = find_cells(trace)
    applied = []
    for i, (engine, fmt) in enumerate(PAIRS):
        scales = {key: 0.001 * (1 + i) * (1 + key[1]) for key in apply_keys(trace)}
        candidate = GivenScales(str(i), scales, ServingSetup(engine, fmt))
        applied.append(candidate.scales_for(trace))
    with ready_profile(trace, cells, CPU) as ready:
        for tensor in ready.profile.tensors():
            own = scales_of_tensor(applied, tensor.record)
            on_cpu = evaluate_tensor(tensor, cells, own, len(applied), CPU)
            errors = evaluation_gpu_kernel.error_sums(tensor, own, len(applied), CPU)
            check_equal([replace(on_cpu, errors=errors)], [on_cpu])


def test_verify_fails_where_the_profile_is_wrong(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace")
    cells = find_cells(trace)

    def one_value_moved() -> Iterator[TensorProfile]:
        for tensor in profile_tensors(trace, cells, CPU):
            if tensor.record.tensor == "v":
                tensor.code[-1] += 1
            yield tensor

    write_profile(trace, cells, one_value_moved(), trace.path / "profile")
    candidates = [GivenScales("c", dict.fromkeys(apply_keys(trace), 0.01))]
    with pytest.raises(ReplayMismatchError, match="layer 0 v"):
        replay(ReplayRequest([trace], candidates, method="verify"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_verify_fails_where_a_vectors_maximum_is_wrong(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace")
    cells = find_cells(trace)

    def one_maximum_moved() -> Iterator[TensorProfile]:
        for tensor in profile_tensors(trace, cells, CPU):
            if tensor.record.tensor == "k":
                tensor.absmax[5, 1] -= 1
            yield tensor

    write_profile(trace, cells, one_maximum_moved(), trace.path / "profile")
    candidates = [GivenScales("c", dict.fromkeys(apply_keys(trace), 0.01))]
    with pytest.raises(ReplayMismatchError, match=r"layer 0 k, vector of token 5, KV head 1"):
        replay(ReplayRequest([trace], candidates, method="verify"), tmp_path / "run")
