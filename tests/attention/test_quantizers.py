"""What candidates make of K, V and Q for attention: the bits of the engine's own round trip."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from kvtrace.attention.quantizers import coded, quantizer_of, static_fp8
from kvtrace.attention.replay import Exact
from kvtrace.candidates.bf16 import Bf16
from kvtrace.candidates.coded import coded_by
from kvtrace.candidates.online import OnlineScales
from kvtrace.candidates.setup import ServingSetup
from kvtrace.candidates.unit import UnitScales
from kvtrace.formats import find_format, parse_format
from kvtrace.formats.coding import RowCoding
from kvtrace.numerics.elementwise import round_trip
from kvtrace.trace.queries import CapturedQueries
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.attention.replay import Restored
    from kvtrace.candidates.candidate import Candidate


def values(dtype: str, seed: int = 3) -> torch.Tensor:
    """Return [head, row, head_dim] float32 that `dtype` holds, far beyond FP8's range too."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(3, 50, 8, generator=generator) * torch.logspace(-4, 4, 8)
    return drawn.clamp(-60000, 60000).to(getattr(torch, dtype)).float()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("engine", ["vllm-cuda", "vllm-cpu", "vllm-triton", "vllm-rocm", "sglang"])
@pytest.mark.parametrize("scales", [(0.37,), (0.01, 1.0, 7.5)])
def test_a_table_of_all_patterns_gives_the_bits_of_the_round_trip(
    dtype: str, engine: str, scales: tuple[float, ...]
) -> None:
    x = values(dtype)
    found = static_fp8(x, scales, engine=engine, fmt="e4m3fn", dtype=dtype)
    scale = torch.tensor(scales).reshape(-1, 1, 1)
    expected = round_trip(x.to(getattr(torch, dtype)), scale, engine=engine, format="e4m3fn").restored
    assert torch.equal(found, expected)


def test_every_bf16_pattern_is_found_in_its_place() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = every[torch.isfinite(every)].float().reshape(1, 1, -1)
    found = static_fp8(finite, [0.5], engine="vllm-cuda", fmt="e4m3fn", dtype="bfloat16")
    expected = round_trip(finite.bfloat16(), 0.5, engine="vllm-cuda").restored
    assert torch.equal(found, expected)


def test_each_kind_of_candidate_is_its_own_round_trip(trace_with_queries: Path) -> None:
    trace = open_trace(trace_with_queries)
    (found, *_) = CapturedQueries(trace).read(0, [0])
    exact = Exact(*(torch.tensor(x).transpose(0, 1).contiguous() for x in (found.q, found.k, found.v)))
    setup = ServingSetup("vllm-cuda")

    def restored(candidate: Candidate) -> Restored:
        applied = candidate.scales_for(trace)
        assert applied is not None
        return quantizer_of(applied, found.layer, "bfloat16")(exact)

    assert restored(Bf16()).k is exact.k
    unit = round_trip(exact.v.bfloat16(), 1.0, engine="vllm-cuda").restored
    assert torch.equal(restored(UnitScales(setup)).v, unit)
    kept = restored(UnitScales(replace(setup, skip_layers=(0,))))
    assert kept.k is exact.k
    for name in ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"):
        found_there, cache = restored(OnlineScales(name)), find_format(name)
        assert torch.equal(found_there.k, cache.k.round_trip(exact.k.bfloat16()))
        assert torch.equal(found_there.v, cache.v.round_trip(exact.v.bfloat16()))


def test_k_and_v_in_formats_of_their_own(trace_with_queries: Path) -> None:
    trace = open_trace(trace_with_queries)
    (found, *_) = CapturedQueries(trace).read(0, [0])
    exact = Exact(*(torch.tensor(x).transpose(0, 1).contiguous() for x in (found.q, found.k, found.v)))
    setup = ServingSetup("vllm-cuda")
    cache = parse_format("k=bf16,v=int8_per_token_head")
    applied = coded_by(OnlineScales("int8_per_token_head"), cache, setup, trace)
    restored = quantizer_of(applied, found.layer, "bfloat16")(exact)
    assert restored.k is exact.k
    assert torch.equal(restored.v, cache.v.round_trip(exact.v.bfloat16()))


def test_a_query_that_a_format_rounds_is_rounded_where_its_keys_are_coded(trace_with_queries: Path) -> None:
    trace = open_trace(trace_with_queries)
    (found, *_) = CapturedQueries(trace).read(0, [0])
    exact = Exact(*(torch.tensor(x).transpose(0, 1).contiguous() for x in (found.q, found.k, found.v)))
    name = "int8_per_token_head+q8"

    def restored(candidate: Candidate) -> Restored:
        applied = candidate.scales_for(trace)
        assert applied is not None
        return quantizer_of(applied, found.layer, "bfloat16")(exact)

    q = restored(OnlineScales(name)).q
    assert q is not None
    assert torch.equal(q, round_trip(exact.q, 1.0).restored)
    assert restored(OnlineScales("int8_per_token_head")).q is None
    assert restored(OnlineScales(name, ServingSetup(skip_layers=(0,)))).q is None


def test_what_is_not_finite_is_zero_to_a_coding_of_whole_vectors() -> None:
    x = torch.tensor([[[1.0, float("nan"), -2.0, float("inf"), 0.5, 0.0, 0.25, 3.0]]])
    coding = find_format("int8_per_token_head").k
    assert isinstance(coding, RowCoding)
    expected = coding.round_trip(torch.where(torch.isfinite(x), x, 0).bfloat16())
    assert torch.equal(coded(x, coding, None, dtype="bfloat16"), expected)
