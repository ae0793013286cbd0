"""A whole trace replayed: R of each candidate, with and without W_O, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.attention_oracle import attention_output
from support.fabricate import fabricate_trace, request

from kvtrace.attention.projection import find_projections
from kvtrace.attention.trace_replay import LayerErrors, replay_attention, residual_sums
from kvtrace.candidates.applied import scale_keys
from kvtrace.candidates.bf16 import Bf16
from kvtrace.candidates.given import GivenScales
from kvtrace.candidates.online import OnlineScales
from kvtrace.candidates.unit import UnitScales
from kvtrace.errors import ArtifactError, InputError
from kvtrace.numerics.elementwise import round_trip
from kvtrace.trace.queries import CapturedQueries
from kvtrace.trace.reader import Trace, open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.candidates.applied import AppliedScales


def candidates(trace: Trace) -> list[AppliedScales]:
    applied = [one.scales_for(trace) for one in (Bf16(), UnitScales(), OnlineScales("int8_per_token_head"))]
    return [one for one in applied if one is not None]


def checkpoint(folder: Path, *, inputs: int = 64, dtype: torch.dtype = torch.float32) -> Path:
    """Write W_O of both layers, and a vision tower's that must not be taken for one."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(11)
    tensors = {}
    for prefix in ("model", "vision_tower"):
        for layer in range(2):
            w_o = torch.randn(32, inputs, generator=generator).to(dtype)
            tensors[f"{prefix}.layers.{layer}.self_attn.o_proj.weight"] = w_o
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    return folder


def test_r_is_that_of_float64_attention_over_the_restored_values(
    trace_with_queries: Path, tmp_path: Path
) -> None:
    trace = open_trace(trace_with_queries)
    model = checkpoint(tmp_path / "model")
    projections = find_projections(model, trace.cache_layers)
    assert {layer: ref.name for layer, ref in projections.items()} == {
        layer: f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(2)
    }
    found = residual_sums(replay_attention(trace, candidates(trace), projections=projections)).error()
    assert found.knowledge == "projected"
    assert found.layers == (0, 1)
    assert (found.by_layer[0] == 0).all()  # bf16: what is not quantized has no error
    assert found.total[2] < found.total[1]  # int8 per token and head is finer than FP8
    generator = torch.Generator().manual_seed(11)
    queries = CapturedQueries(trace)
    for layer in range(2):
        w_o = torch.randn(32, 64, generator=generator).double().numpy()
        error = output = 0.0
        for values in queries.read(layer, [0, 1]):
            assert values.is_dense
            exact = attention_output(values)
            k, v = (round_trip(torch.tensor(x).bfloat16(), 1.0).restored for x in (values.k, values.v))
            restored = attention_output(replace(values, k=k.numpy(), v=v.numpy()))
            error += np.square((restored - exact).reshape(len(exact), -1) @ w_o.T).sum()
            output += np.square(exact.reshape(len(exact), -1) @ w_o.T).sum()
        assert found.by_layer[1, layer] == pytest.approx(error / output, rel=1e-3)


def test_requests_one_at_a_time_give_the_same(trace_with_queries: Path) -> None:
    trace = open_trace(trace_with_queries)

    def rows(most_bytes: int) -> dict[tuple[int, int], LayerErrors]:
        replayed = replay_attention(trace, candidates(trace), most_bytes=most_bytes)
        return {(part.layer, part.request): part for part in replayed}

    together, apart = rows(1 << 30), rows(1)
    assert set(together) == set(apart) == {(layer, number) for layer in range(2) for number in range(2)}
    for key, part in together.items():
        assert (part.errors.sum_do2 == apart[key].errors.sum_do2).all()
        assert part.errors.position.tolist() == [5, 20, 33, 47]


def test_scales_that_are_too_small_do_more_harm(trace_with_queries: Path) -> None:
    trace = open_trace(trace_with_queries)
    given = [
        GivenScales(f"{n} times too small", dict.fromkeys(scale_keys(trace), 1 / 100 / n)).scales_for(trace)
        for n in (1, 4, 16)
    ]
    totals = residual_sums(replay_attention(trace, given)).error()
    assert totals.knowledge == "heads"
    assert (np.diff(totals.total) > 0).all()


def test_a_trace_without_queries_is_refused_with_how_to_capture_them(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, t): np.zeros((4, 1, 4)) for t in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    with pytest.raises(InputError, match="holds no queries") as raised:
        list(replay_attention(open_trace(path), []))
    assert "kvtrace capture run --queries probe" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": 48}, r"has shape \[32, 48\], the trace's layer 0 needs \[hidden, 64\]"),
        ({"dtype": torch.float8_e4m3fn}, "is F8_E4M3; expected BF16, F16, F32"),
    ],
)
def test_a_w_o_that_does_not_fit_is_refused_by_name(
    trace_with_queries: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    trace = open_trace(trace_with_queries)
    projections = find_projections(checkpoint(tmp_path / "model", **options), trace.cache_layers)
    with pytest.raises(ArtifactError, match=said):
        list(replay_attention(trace, candidates(trace), projections=projections))
