from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.fabricate import bits, fabricate_trace
from support.replay_oracle import COUNTS, SQUARES, expected_cells
from support.replayed_trace import (
    CELL_OF_ROW,
    GIVEN,
    HEAD_DIM,
    HEADS,
    LAYERS,
    POSITION_OF_ROW,
    REQUEST_OF_ROW,
    REQUESTS,
    found_cells,
    make_tensors,
    make_trace,
    rows_of,
)

from kvtrace.candidates import (
    ArtifactScales,
    Bf16,
    GivenScales,
    ServingSetup,
    UnitScales,
    standard_candidates,
)
from kvtrace.errors import (
    DeviceError,
    InputError,
    IntegrityError,
    NoValidCandidateError,
    OutputExistsError,
)
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.numerics import FORMATS
from kvtrace.runs.record import RunRecord
from kvtrace.scales import load_artifact
from kvtrace.trace.format import unseal
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from kvtrace.evaluation.request import Method

ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def assert_cells(found: dict[tuple[Any, ...], Any], expected: dict[tuple[Any, ...], Any]) -> None:
    assert found.keys() == expected.keys()
    for key, sums in expected.items():
        assert {c: found[key][c] for c in COUNTS} == {c: sums[c] for c in COUNTS}, key
        for column in SQUARES:
            no_value = column == "max_abs" and sums["num_values"] == 0
            assert found[key][column] == (None if no_value else pytest.approx(sums[column], rel=1e-12)), key


@pytest.mark.parametrize(
    ("engine", "fmt", "dtype"),
    [
        ("vllm-cuda", "e4m3fn", "bfloat16"),
        ("vllm-cuda", "e5m2", "float16"),
        ("vllm-cpu", "e4m3fn", "bfloat16"),
        ("vllm-rocm", "e4m3fnuz", "float16"),
        ("sglang", "e4m3fn", "bfloat16"),
        ("vllm-cuda", "e4m3fn", "float32"),
    ],
)
@pytest.mark.parametrize("method", ["profile", "direct"])
def test_every_sum_of_every_cell_equals_the_oracle(
    tmp_path: Path, method: Method, engine: str, fmt: str, dtype: str
) -> None:
    tensors = make_tensors()
    trace = make_trace(tmp_path / "t.kvtrace", tensors, dtype=dtype)
    setup = ServingSetup(engine, fmt)
    too_small = {key: value * 448 / FORMATS[fmt].max_value for key, value in GIVEN.items()}
    candidates = [Bf16(), UnitScales(setup), GivenScales("given", too_small, setup)]
    run = replay(ReplayRequest([trace], candidates, method=method), tmp_path / "run")
    options = {"engine": engine, "fmt": fmt, "dtype": dtype}
    for name, scale in {
        "bf16": lambda *_: None,
        "unit": lambda *_: 1.0,
        "given": lambda *key: too_small[key],
    }.items():
        assert_cells(found_cells(run, name), expected_cells(tensors, CELL_OF_ROW, scale, **options))
    clipped = sum(row["num_clipped"] for row in found_cells(run, "given").values())
    assert clipped > 0


def test_a_trace_cut_into_ranks_and_small_chunks_gives_the_same_sums(tmp_path: Path) -> None:
    tensors = make_tensors()
    whole = make_trace(tmp_path / "t.kvtrace", tensors)
    random = np.random.default_rng(1)
    orders = [random.permutation(len(REQUEST_OF_ROW)).tolist() for _ in range(2)]
    split = make_trace(
        tmp_path / "s.kvtrace", tensors, ranks=[[0, 2], [1]], rows_of_rank=orders, rows_per_chunk=7
    )
    candidates = [GivenScales("given", GIVEN)]
    runs = [replay(ReplayRequest([t], candidates), tmp_path / t.name) for t in (whole, split)]
    assert_cells(*(found_cells(run, "given") for run in runs))
    keys = ("row", "layer", "kv_head", "tensor")
    vectors = [sorted(rows_of(run, "vectors"), key=lambda v: tuple(v[k] for k in keys)) for run in runs]
    assert [v | {"source": ""} for v in vectors[0]] == [v | {"source": ""} for v in vectors[1]]


def test_a_head_that_two_ranks_hold_counts_once(tmp_path: Path) -> None:
    tensors = make_tensors()
    trace = make_trace(tmp_path / "t.kvtrace", tensors, ranks=[[0, 1], [0, 1], [2]])
    run = replay(ReplayRequest([trace], [GivenScales("given", GIVEN)]), tmp_path / "run")
    assert_cells(found_cells(run, "given"), expected_cells(tensors, CELL_OF_ROW, lambda *key: GIVEN[key]))


def test_k_and_v_may_differ_in_head_dim(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors |= {(layer, "v"): tensors[layer, "v"][..., :5] for layer in range(LAYERS)}
    trace = make_trace(tmp_path / "t.kvtrace", tensors)
    run = replay(ReplayRequest([trace], [GivenScales("given", GIVEN)], method="verify"), tmp_path / "run")
    assert_cells(found_cells(run, "given"), expected_cells(tensors, CELL_OF_ROW, lambda *key: GIVEN[key]))


def test_rows_that_a_rank_lost_are_absent_for_its_heads_alone(tmp_path: Path) -> None:
    tensors = make_tensors()
    all_rows = list(range(len(REQUEST_OF_ROW)))
    trace = make_trace(
        tmp_path / "t.kvtrace", tensors, ranks=[[0, 1], [2]], rows_of_rank=[all_rows, all_rows[:60]]
    )
    run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
    per_head = [0, 0, 0]
    for (layer, head, tensor, *_), sums in found_cells(run, "bf16").items():
        if (layer, tensor) == (0, "k"):
            per_head[head] += int(sums["num_vectors"])
    assert per_head == [70, 70, 60]


def test_vectors_hold_the_code_of_the_largest_finite_magnitude(tmp_path: Path) -> None:
    tensors = make_tensors()
    trace = make_trace(tmp_path / "t.kvtrace", tensors)
    run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
    row_of_token = {(r, p): i for i, (r, p) in enumerate(zip(REQUEST_OF_ROW, POSITION_OF_ROW, strict=True))}
    index = {row["row"]: row_of_token[row["request"], row["position"]] for row in rows_of(run, "rows")}
    vectors = rows_of(run, "vectors")
    assert len(vectors) == len(REQUEST_OF_ROW) * LAYERS * HEADS * 2
    for vector in vectors:
        values = tensors[vector["layer"], vector["tensor"]][index[vector["row"]], vector["kv_head"]]
        codes = bits(values) & 0x7FFF
        finite = codes[codes < 0x7F80]
        assert vector["absmax_code"] == (int(finite.max()) if len(finite) else None)
        assert vector["has_nonfinite"] == (len(finite) < HEAD_DIM)


def test_a_vector_is_out_of_range_exactly_where_its_code_exceeds_the_scales_limit(tmp_path: Path) -> None:
    tensors = make_tensors()
    trace = make_trace(tmp_path / "t.kvtrace", tensors)
    run = replay(ReplayRequest([trace], [GivenScales("given", GIVEN)]), tmp_path / "run")
    limits = {(s["layer"], s["kv_head"], s["tensor"]): s for s in rows_of(run, "scales")}
    for vector in rows_of(run, "vectors"):
        scale = limits[vector["layer"], vector["kv_head"], vector["tensor"]]
        if vector["absmax_code"] is None:
            continue
        absmax = (np.array([vector["absmax_code"]], np.uint32) << 16).view(np.float32)[0]
        quotient = absmax / np.float32(scale["scale"])
        assert (vector["absmax_code"] > scale["max_in_range_code"]) == (quotient > 448)
        assert (vector["absmax_code"] > scale["max_unclipped_code"]) == (quotient > 464)
    assert limits[0, 1, "v"]["covered_amax"] == pytest.approx(448 * GIVEN[0, 1, "v"], rel=1e-6)


def test_unquantized_scales_and_limits_are_null(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    skipping = GivenScales("skip", GIVEN, ServingSetup(skip_layers=(1,)))
    run = replay(ReplayRequest([trace], [Bf16(), skipping]), tmp_path / "run")
    for row in rows_of(run, "scales"):
        is_null = [
            row[c] is None for c in ("scale", "covered_amax", "max_in_range_code", "max_unclipped_code")
        ]
        assert is_null == [row["candidate"] == "bf16" or row["layer"] == 1] * 4
    skipped = [r for k, r in found_cells(run, "skip").items() if k[0] == 1]
    assert all(r["sum_sq_error"] == r["num_clipped"] == 0 < r["sum_sq_signal"] for r in skipped)


def test_several_traces_are_told_apart_by_source(tmp_path: Path) -> None:
    tensors = make_tensors()
    traces = [make_trace(tmp_path / d / "t.kvtrace", tensors) for d in "ab"]
    run = replay(ReplayRequest(traces, [Bf16()]), tmp_path / "run")
    record = unseal((run / "run.json").read_text(), RunRecord)
    assert [s.name for s in record.sources] == ["t", "t#2"]
    assert record.sources[0].trace_sha256 == traces[0].digest
    for table in ("rows", "requests", "sampling", "scales", "cells", "vectors"):
        sources = [row["source"] for row in rows_of(run, table)]
        assert sources.count("t") == sources.count("t#2") > 0


def test_requests_and_sampling_rules_are_those_of_the_trace(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
    requests = {r["request"]: r for r in rows_of(run, "requests")}
    assert requests[1] | {"arrived": 0} == requests[1] | {"arrived": 0, "workload": "code", "num_rows": 20}
    assert (requests[0]["prompt_tokens"], requests[0]["output_tokens"]) == (40, 10)
    assert [(s["position_stride"], s["request_fraction"]) for s in rows_of(run, "sampling")] == [
        (1, 1.0),
        (16, 0.5),
    ]
    phases = [(r["position"], r["phase"]) for r in rows_of(run, "rows") if r["request"] == 0]
    assert phases == [(p, "decode" if p >= 40 else "prefill") for p in range(50)]


class TestEffectiveCandidate:
    SCALES: ClassVar = {(0, "k"): (0.5, 0.25, 0.125), (1, "v"): (2.0,)}

    def test_a_bf16_engine_has_none_and_everything_quantized_is_hypothetical(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        run = replay(ReplayRequest([trace], standard_candidates([trace], [])), tmp_path / "run")
        found = [(c["candidate"], c["hypothetical"]) for c in rows_of(run, "candidates")]
        assert found == [("bf16", False), ("unit", True)]

    def test_an_fp8_engine_has_one_with_the_scales_and_numerics_it_used(self, tmp_path: Path) -> None:
        tensors = make_tensors()
        trace = make_trace(tmp_path / "t.kvtrace", tensors, kv_cache_dtype="fp8_e4m3", scales=self.SCALES)
        run = replay(ReplayRequest([trace], standard_candidates([trace], [])), tmp_path / "run")
        _, effective, one = rows_of(run, "candidates")
        assert (effective["candidate"], effective["hypothetical"]) == ("effective", False)
        assert (effective["engine"], effective["granularity"]) == ("vllm-cpu", "attn_head")
        assert one["hypothetical"]

        def in_effect(layer: int, head: int, tensor: str) -> float:
            scales = self.SCALES.get((layer, tensor), (1.0,))
            return scales[head % len(scales)]

        expected = expected_cells(tensors, CELL_OF_ROW, in_effect, engine="vllm-cpu")
        assert_cells(found_cells(run, "effective"), expected)

    def test_unit_is_not_hypothetical_where_the_engine_ran_with_ones(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors(), kv_cache_dtype="fp8")
        run = replay(ReplayRequest([trace], standard_candidates([trace], [])), tmp_path / "run")
        assert [c["hypothetical"] for c in rows_of(run, "candidates")] == [True, False, False]


class TestInvalidCandidates:
    @pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf"), 1e38, 1e-60])
    def test_an_unusable_scale_makes_it_invalid_and_the_others_go_on(
        self, tmp_path: Path, value: float
    ) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        bad = GivenScales("bad", GIVEN | {(1, 2, "v"): value})
        run = replay(ReplayRequest([trace], [Bf16(), bad, GivenScales("good", GIVEN)]), tmp_path / "run")
        _, invalid, valid = rows_of(run, "candidates")
        assert (invalid["status"], valid["status"], valid["reason"]) == ("invalid", "valid", None)
        assert "v scale of layer 1, KV head 2" in invalid["reason"]
        assert found_cells(run, "bad") == {}
        assert found_cells(run, "good")

    def test_a_missing_layer_is_another_model(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        short = {key: value for key, value in GIVEN.items() if key[0] == 0}
        with pytest.raises(NoValidCandidateError, match=r"layer 1, KV head 0.*another model"):
            replay(ReplayRequest([trace], [Bf16(), GivenScales("short", short)]), tmp_path / "run")
        assert not list(tmp_path.glob("*run*"))

    def test_a_format_that_the_engine_does_not_write_is_invalid(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        fnuz = GivenScales("fnuz", GIVEN, ServingSetup("vllm-cpu", "e4m3fnuz"))
        run = replay(ReplayRequest([trace], [fnuz, GivenScales("good", GIVEN)]), tmp_path / "run")
        assert "vllm-cpu does not write e4m3fnuz" in rows_of(run, "candidates")[0]["reason"]


class TestArtifacts:
    def test_its_scales_origin_and_hash_are_in_the_run(self, tmp_path: Path) -> None:
        shape = (4, 2, 8)  # the example's model has 3 layers of 2 heads
        tensors = {(layer, t): np.ones(shape, np.float32) for layer in range(3) for t in "kv"}
        options = {"request_of_row": [0] * 4, "position_of_row": range(4), "requests": REQUESTS[:1]}
        trace = open_trace(fabricate_trace(tmp_path / "t.kvtrace", tensors, **options))
        artifact = load_artifact(ARTIFACTS / "ct_per_head")
        run = replay(ReplayRequest([trace], [ArtifactScales("per head", artifact)]), tmp_path / "run")
        with safe_open(ARTIFACTS / "ct_per_head/model.safetensors", "pt") as stored:
            for row in rows_of(run, "scales"):
                key = f"model.layers.{row['layer']}.self_attn.{row['tensor']}_scale"
                assert row["scale"] == stored.get_tensor(key)[row["kv_head"], 0, 0].float().item()
                assert row["origin"] == f"model.safetensors:{key}"
        assert len(rows_of(run, "scales")) == 3 * 2 * 2
        (candidate,) = rows_of(run, "candidates")
        assert candidate["artifact_sha256"] == artifact.sha256
        assert (candidate["artifact"], candidate["granularity"]) == (str(artifact.path), "attn_head")

    def test_two_of_one_name_are_told_apart(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        artifact = load_artifact(ARTIFACTS / "ct_per_head")
        names = [c.name for c in standard_candidates([trace], [artifact, artifact])]
        assert names == ["bf16", "unit", "ct_per_head", "ct_per_head#2"]


class TestOutput:
    def test_an_existing_output_is_kept_unless_forced(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
        before = (run / "run.json").read_bytes()
        with pytest.raises(OutputExistsError, match="--force"):
            replay(ReplayRequest([trace], [Bf16()]), run)
        assert (run / "run.json").read_bytes() == before
        replay(ReplayRequest([trace], [Bf16(), UnitScales()]), run, force=True)
        assert len(rows_of(run, "candidates")) == 2
        assert {p.name for p in tmp_path.iterdir()} == {"t.kvtrace", "run"}

    @pytest.mark.parametrize("kind", ["directory", "file"])
    def test_force_never_overwrites_what_is_no_run(self, tmp_path: Path, kind: str) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        out = tmp_path / "precious"
        if kind == "directory":
            out.mkdir()
            (out / "thesis.tex").write_text("…")
        else:
            out.write_text("…")
        with pytest.raises(OutputExistsError, match="is not a run"):
            replay(ReplayRequest([trace], [Bf16()]), out, force=True)
        assert out.exists()

    @pytest.mark.parametrize(
        ("content", "kept"),
        [
            ({"run.json": '{"scripts": {}}', "thesis.tex": "…"}, "is not a run"),
            ({"notes.txt": "…"}, "holds notes.txt besides a run"),
        ],
    )
    def test_force_never_takes_what_is_not_of_a_run(
        self, tmp_path: Path, content: dict[str, str], kept: str
    ) -> None:
        trace, out = make_trace(tmp_path / "t.kvtrace", make_tensors()), tmp_path / "out"
        if "run.json" in content:
            out.mkdir()
        else:
            replay(ReplayRequest([trace], [Bf16()]), out)
        for name, text in content.items():
            (out / name).write_text(text)
        with pytest.raises(OutputExistsError, match=kept):
            replay(ReplayRequest([trace], [Bf16()]), out, force=True)
        assert {name: (out / name).read_text() for name in content} == content

    def test_the_working_directory_is_never_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
        monkeypatch.chdir(run)
        for out in (Path(), run, tmp_path):
            with pytest.raises(InputError, match="the working directory lies there"):
                replay(ReplayRequest([trace], [Bf16()]), out, force=True)

    def test_no_run_is_written_into_a_trace(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        for name in ("rank-1.zarr", "profile/mine", "profile-groups", "profile"):
            with pytest.raises(InputError, match="lies inside the trace"):
                replay(ReplayRequest([trace], [Bf16()]), trace.path / name)

    def test_candidates_of_one_name_are_refused(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        with pytest.raises(InputError, match="2 candidates are called 'bf16'"):
            replay(ReplayRequest([trace], [Bf16(), UnitScales(), Bf16()]), tmp_path / "run")

    def test_a_damaged_chunk_leaves_no_run_and_no_rest(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors(), rows_per_chunk=16)
        chunk = tmp_path / "t.kvtrace/rank-0.zarr/layers/01/v/c/3/0/0"
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
        with pytest.raises(IntegrityError, match="layers/01/v/c/3/0/0"):
            replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
        assert {p.name for p in tmp_path.iterdir()} == {"t.kvtrace"}

    def test_an_interrupt_leaves_the_old_run_untouched(self, tmp_path: Path) -> None:
        trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
        run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
        before = {p.name: p.read_bytes() for p in run.iterdir()}

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            replay(
                ReplayRequest([trace], [Bf16(), UnitScales()], method="direct"),
                run,
                force=True,
                progress=interrupt,
            )
        assert {p.name: p.read_bytes() for p in run.iterdir()} == before
        assert {p.name for p in tmp_path.iterdir()} == {"t.kvtrace", "run"}


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta"])
def test_a_device_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    with pytest.raises(DeviceError, match=name):
        replay(ReplayRequest([trace], [Bf16()], device=name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_a_replay_on_the_gpu_equals_the_one_on_the_cpu(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    setups = [ServingSetup(engine) for engine in ("vllm-cuda", "vllm-cpu", "sglang")]
    candidates = [GivenScales(s.engine, GIVEN, s) for s in setups]
    cpu, gpu = (replay(ReplayRequest([trace], candidates, device=d), tmp_path / d) for d in ("cpu", "cuda"))
    for setup in setups:
        found, expected = found_cells(gpu, setup.engine), found_cells(cpu, setup.engine)
        assert_cells(found, expected)


def test_setups_are_values_that_can_be_changed_one_field_at_a_time() -> None:
    assert replace(ServingSetup(), engine="vllm-cpu").fp8_format == "e4m3fn"
