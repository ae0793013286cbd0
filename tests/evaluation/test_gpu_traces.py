"""Traces as GPUs write them, by today's records and by older ones that hold a product's name alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.replayed_trace import rows_of
from support.run_cli import kvtrace

from kvtrace.calibration.save import save_scales
from kvtrace.candidates import OnlineScales, standard_candidates
from kvtrace.candidates.captured import captured_setup, format_on
from kvtrace.errors import InputError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.report.build import build_report
from kvtrace.report.markdown import report_markdown
from kvtrace.report.terminal.text import report_text
from kvtrace.runs.open import open_run
from kvtrace.trace.cache_dtypes import cache_kind
from kvtrace.trace.format import RankRecord, TraceRecord, seal, unseal
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = 2
SCALES = {(layer, tensor): (0.5,) for layer in range(LAYERS) for tensor in "kv"}


def write_trace(path: Path, *, backends: tuple[str, ...] = (), cache: str = "fp8", **engine: Any) -> Path:
    """Write a trace of two layers, every scale 0.5. backends: one a layer. engine: fields of its record."""
    fabricate_trace(
        path,
        {key: np.linspace(-3, 3, 64).reshape(4, 2, 8) for key in SCALES},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
        scales=SCALES,
        kv_cache_dtype=cache,
    )
    record = unseal((path / "trace.json").read_bytes(), TraceRecord)
    told = record.engine.model_copy(update={"name": "vllm"} | engine)
    (path / "trace.json").write_text(seal(record.model_copy(update={"engine": told})))
    if backends:
        file = path / "rank-0.zarr" / "rank.json"
        rank = unseal(file.read_bytes(), RankRecord)
        pairs = zip(rank.layers, backends, strict=True)
        layers = tuple(layer.model_copy(update={"backend": backend}) for layer, backend in pairs)
        file.write_text(seal(rank.model_copy(update={"layers": layers})))
    return path


def numerics_of(path: Path, **options: Any) -> tuple[str, str | None]:
    setup = captured_setup(open_trace(write_trace(path, **options)))
    return setup.engine, setup.format


@pytest.mark.parametrize(
    ("engine", "cache", "expected"),
    [
        ("vllm-cuda", "fp8_e5m2", "e5m2"),
        ("vllm-cpu", "fp8_e5m2", "e5m2"),
        ("vllm-triton", "fp8_e5m2", None),  # its writer stores e4m3 whatever is asked for
        ("vllm-cuda", "fp8", None),
    ],
)
def test_numerics_that_are_chosen_write_the_format_that_the_captured_engine_was_asked_for(
    tmp_path: Path, engine: str, cache: str, expected: str | None
) -> None:
    trace = open_trace(write_trace(tmp_path / "t.kvtrace", cache=cache))
    assert format_on(engine, [trace]) == expected


PRODUCTS = [
    ("NVIDIA H100 80GB HBM3", "9.0", "FLASH_ATTN", "vllm-cuda", "e4m3fn"),
    ("NVIDIA H200", "9.0", "FLASH_ATTN", "vllm-cuda", "e4m3fn"),
    ("NVIDIA B200", "10.0", "FLASHINFER", "vllm-cuda", "e4m3fn"),
    ("NVIDIA A100-SXM4-80GB", "8.0", "FLASHINFER", "vllm-cuda", "e4m3fn"),
    ("NVIDIA L40S", "8.9", "TRITON_ATTN", "vllm-triton", "e4m3fn"),
    ("NVIDIA GeForce RTX 4090", "8.9", "TRITON_ATTN", "vllm-triton", "e4m3fn"),
    ("AMD Instinct MI300X", "9.4", "ROCM_ATTN", "vllm-rocm", "e4m3fnuz"),
    ("AMD Instinct MI300X", "9.4", "TRITON_ATTN", "vllm-triton", "e4m3fnuz"),
    ("AMD Instinct MI355X", "9.5", "ROCM_AITER_FA", "vllm-rocm", "e4m3fn"),
]


@pytest.mark.parametrize("is_recorded", [True, False], ids=["with platform", "product alone"])
@pytest.mark.parametrize(
    ("product", "capability", "backend", "numerics", "fp8_format"),
    PRODUCTS,
    ids=[f"{one[0]} {one[2]}" for one in PRODUCTS],
)
def test_a_trace_of_a_gpu_replays_as_what_ran(
    tmp_path: Path,
    product: str,
    capability: str,
    backend: str,
    numerics: str,
    fp8_format: str,
    is_recorded: bool,
) -> None:
    platform = "rocm" if product.startswith("AMD") else "cuda"
    told = {"platform": platform, "compute_capability": capability} if is_recorded else {}
    trace = open_trace(write_trace(tmp_path / "t.kvtrace", backends=(backend,) * 2, device=product, **told))
    run = replay(ReplayRequest([trace], standard_candidates([trace])), tmp_path / "run")
    found = {row["candidate"]: row for row in rows_of(run, "candidates")}
    assert {name: (row["engine"], row["format"]) for name, row in found.items()} == {
        "bf16": (None, None),
        "effective": (numerics, fp8_format),
        "unit": (numerics, fp8_format),
    }
    assert {name: row["hypothetical"] for name, row in found.items()} == {
        "bf16": True,
        "effective": False,
        "unit": True,
    }
    assert f"on {product} ({backend})" in " ".join(report_text(build_report(open_run(run))).split())


@pytest.mark.parametrize(
    ("engine", "backend", "numerics"),
    [
        ({"device": "cuda"}, "FLASH_ATTN", ("vllm-cuda", "e4m3fn")),
        ({"device": "cuda:3"}, "TRITON_ATTN", ("vllm-triton", "e4m3fn")),
        ({"device": "cuda", "compute_capability": "9.5"}, "ROCM_ATTN", ("vllm-rocm", "e4m3fn")),
        (
            {"device": "cuda", "compute_capability": "9.4", "torch_version": "2.13.0+rocm7.2"},
            "TRITON_ATTN",
            ("vllm-triton", "e4m3fnuz"),
        ),
        ({"device": "Tesla V100-SXM2-32GB"}, "FLASHINFER", ("vllm-cuda", "e4m3fn")),
        ({"device": "AMD_Instinct_MI325X"}, "ROCM_ATTN", ("vllm-rocm", "e4m3fnuz")),
        ({"device": "cpu"}, "CPU_ATTN", ("vllm-cpu", "e4m3fn")),
    ],
)
def test_a_device_type_tells_the_platform_with_the_backends_and_torch(
    tmp_path: Path, engine: dict[str, str], backend: str, numerics: tuple[str, str]
) -> None:
    assert numerics_of(tmp_path / "t.kvtrace", backends=(backend,) * 2, **engine) == numerics


def test_tritons_cache_write_stores_e4m3_though_e5m2_was_asked_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": "fp8_e5m2", "device": "NVIDIA L40S"}
    triton = numerics_of(tmp_path / "a.kvtrace", backends=("TRITON_ATTN",) * 2, **options)
    assert triton == ("vllm-triton", "e4m3fn")
    flashinfer = numerics_of(tmp_path / "b.kvtrace", backends=("FLASHINFER",) * 2, **options)
    assert flashinfer == ("vllm-cuda", "e5m2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"device": "Frobnicator 9"},
            "ran on 'Frobnicator 9', which tells no platform.*--engine: vllm-cuda,",
        ),
        ({"device": "xpu"}, r"'xpu' \(xpu\) with cache dtype fp8 .*has no numerics.*--engine"),
        ({"device": "npu", "platform": "npu"}, r"\(npu\) .*has no numerics"),
        ({"device": "AMD Instinct MI300X", "cache": "fp8_e5m2"}, "cache dtype fp8_e5m2 .*has no numerics"),
        ({"device": "AMD Instinct"}, "whether its FP8 is e4m3fnuz .*--engine vllm-rocm --fp8-format"),
        (
            {"device": "NVIDIA H200", "backends": ("FLASH_ATTN", "TRITON_ATTN")},
            "written in 2 ways .vllm-cuda in e4m3fn: layer 0 on FLASH_ATTN; vllm-triton in e4m3fn: layer 1 "
            "on TRITON_ATTN.*--engine",
        ),
        ({"device": "NVIDIA H200", "cache": "auto"}, "none is FP8"),
    ],
)
def test_what_no_replay_can_stand_for_is_said_and_not_guessed(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        numerics_of(tmp_path / "t.kvtrace", **options)


def test_backends_with_the_same_numerics_replay_as_one(tmp_path: Path) -> None:
    backends = ("FLASH_ATTN", "FLASHINFER")
    found = numerics_of(tmp_path / "t.kvtrace", backends=backends, device="NVIDIA H200")
    assert found == ("vllm-cuda", "e4m3fn")


def test_every_cache_dtype_of_vllm_is_unquantized_static_fp8_or_neither() -> None:
    # vLLM 0.32's CacheDType, 0.33's octave names, and a name that a plug-in might register
    others = (
        "fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc "
        "turboquant_3bit_nc ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head "
        "nvfp4 nvfp4_4over6 octave_k3v4 octave_k3v3 octave_k3v3_compact fp8_mine"
    )
    assert {cache_kind(name) for name in others.split()} == {"other"}
    assert {cache_kind(name) for name in ("fp8", "fp8_e4m3", "fp8_e5m2")} == {"static_fp8"}
    assert {cache_kind(name) for name in ("auto", "float16", "bfloat16", "half")} == {"unquantized"}


OTHERS = ("fp8_per_token_head", "fp8_ds_mla", "nvfp4", "fp8_mine")


@pytest.mark.parametrize("cache", OTHERS)
def test_another_quantized_cache_is_named_and_never_replayed_as_static_fp8(
    tmp_path: Path, cache: str
) -> None:
    path = write_trace(
        tmp_path / "t.kvtrace", backends=("TRITON_ATTN",) * 2, cache=cache, device="NVIDIA L40S"
    )
    trace = open_trace(path)
    save_scales(tmp_path / "same", SCALES)
    artifact = str(tmp_path / "same")

    inspected = kvtrace("inspect", str(path)).stdout
    assert f"KV cache  {cache}: quantized, but not static FP8" in inspected
    assert "every effective" not in inspected
    assert max(map(len, inspected.splitlines()[1:])) <= 80  # the first is its path

    run = tmp_path / "run"
    done = kvtrace("replay", str(path), "--scales", artifact, "-o", str(run))
    assert done.returncode == 0, done.stderr
    found = {row["candidate"]: row["hypothetical"] for row in rows_of(run, "candidates")}
    assert found == {"bf16": True, "unit": True, "same": True}

    report = build_report(open_run(run))
    assert (report.sources[0].cache_kind, report.sources[0].cache_dtypes) == ("other", (cache,))
    text = " ".join(report_text(report).split())
    assert f"cache dtype {cache}: quantized, but not as static FP8" in text
    assert f"{cache.replace('_', chr(92) + '_')} cache, not static FP8" in report_markdown(report)
    for said in (text, report_markdown(report)):
        assert "no fp8" not in said.lower()
        assert "Is what ran" not in said

    scales = kvtrace("scales", artifact, "--trace", str(path)).stdout
    assert f"its cache was {cache}, which is not static FP8" in scales
    assert "no FP8 was in effect" not in scales
    rows = json.loads(kvtrace("scales", artifact, "--trace", str(path), "--json").stdout)
    assert {row["effective_scale"] for row in rows["scales"]} == {None}
    assert trace.cache_kind == "other"


def test_static_fp8_beside_another_quantized_cache_is_not_what_can_be_replayed(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.kvtrace", device="NVIDIA H200")
    file = path / "rank-0.zarr" / "rank.json"
    rank = unseal(file.read_bytes(), RankRecord)
    first, second = rank.layers
    layers = (first, second.model_copy(update={"kv_cache_dtype": "nvfp4"}))
    file.write_text(seal(rank.model_copy(update={"layers": layers})))
    trace = open_trace(path)
    assert trace.cache_kind == "other"
    assert [one.name for one in standard_candidates([trace], [])] == ["bf16", "unit"]
    with pytest.raises(InputError, match="cache dtype nvfp4"):
        captured_setup(trace)


@pytest.mark.parametrize(
    ("cache", "policy", "device", "ran"),
    [
        ("fp8_per_token_head", "fp8-per-token-head", "NVIDIA H200", True),
        ("int8_per_token_head", "int8-per-token-head", "NVIDIA H200", True),
        ("int8_per_token_head", "int8-per-token-head", "AMD Instinct MI300X", True),
        ("int8_per_token_head", "fp8-per-token-head", "NVIDIA H200", False),
        ("fp8", "fp8-per-token-head", "NVIDIA H200", False),
        # its codes are e4m3fnuz there, which the policy's are not
        ("fp8_per_token_head", "fp8-per-token-head", "AMD Instinct MI300X", False),
        ("fp8_per_token_head", "fp8-per-token-head", "Frobnicator 9", False),
    ],
)
def test_a_policy_is_what_ran_where_the_captured_cache_was_that_policys(
    tmp_path: Path, cache: str, policy: str, device: str, ran: bool
) -> None:
    trace = open_trace(write_trace(tmp_path / "t.kvtrace", cache=cache, device=device))
    run = replay(ReplayRequest([trace], [OnlineScales(policy)]), tmp_path / "run")
    assert [row["hypothetical"] for row in rows_of(run, "candidates")] == [not ran]
    text = " ".join(report_text(build_report(open_run(run))).split())
    assert ("It is what ran." in text) is ran
