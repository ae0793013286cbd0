"""The hook around a real vLLM attention layer and its own CPU kernels, without an engine."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.attention_oracle import attention

from kvtrace.trace.store import RankStore, open_store

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

pytestmark = pytest.mark.vllm

NAME, BLOCK, DIM = "model.layers.0.self_attn.attn", 32, 32
SAME_OUTPUT = 2**-8
"""Relative distance of an output in bf16, which keeps 8 bits, from the float64 one of the same Q, K and V."""


class Layer:
    """One attention layer of vLLM with a cache of its own, captured into a folder."""

    def __init__(self, folder: Path, *, window: int | None, num_kv_heads: int) -> None:
        import torch
        from kvtrace_capture.hooks import find_layers, wrap_attention, wrap_cache_write
        from kvtrace_capture.rank_stores import make_recorder
        from kvtrace_capture.settings import CaptureSettings
        from vllm.config import set_current_vllm_config
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.layers.attention import Attention

        from kvtrace.trace.format import RankRecord

        config = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
            "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": num_kv_heads, "head_dim": DIM, "vocab_size": 512,
            "max_position_embeddings": 512, "torch_dtype": "bfloat16",
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        arguments = EngineArgs(
            str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, block_size=BLOCK
        )
        self.config = arguments.create_engine_config()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with set_current_vllm_config(self.config):
                self.module = Attention(
                    4, DIM, DIM**-0.5, num_kv_heads=num_kv_heads, cache_config=self.config.cache_config,
                    per_layer_sliding_window=window, prefix=NAME,
                )  # fmt: skip
        finally:
            torch.set_default_dtype(torch.float32)
        self.module.process_weights_after_loading(torch.bfloat16)
        self.spec = self.module.get_kv_cache_spec(self.config)
        cache = torch.zeros(8, num_kv_heads, BLOCK, 2 * DIM, dtype=torch.bfloat16)
        self.module.kv_cache = cache
        groups = [SimpleNamespace(layer_names=[NAME], kv_cache_spec=self.spec)]
        (self.found,) = find_layers(
            self.config, SimpleNamespace(kv_cache_groups=groups), {NAME: cache}, None, 0, "probe"
        )
        rank = RankRecord(trace_id="t", rank=0, rows_per_chunk=1, layers=(self.found.record,))
        settings = CaptureSettings(folder, queries="probe")
        self.recorder = make_recorder(folder, rank, [self.found], [BLOCK], settings)
        wrap_cache_write(self.module, self.recorder)
        wrap_attention(self.module, self.recorder, with_output=True)

    def step(self, values: list[torch.Tensor], start: int, queries: tuple[int, ...]) -> torch.Tensor:
        """Run Q, K and V of the next positions of one request, whose blocks are 3, 1, 6 and 2."""
        import torch
        from kvtrace_capture.step_plan import StepPlan, plan_request
        from vllm.forward_context import set_forward_context
        from vllm.v1.attention.backend import CommonAttentionMetadata

        blocks, end = [3, 1, 6, 2], start + len(values[0])
        position = torch.arange(start, end)
        slots = torch.tensor(blocks)[position // BLOCK] * BLOCK + position % BLOCK
        bounds = torch.tensor([0, end - start], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=bounds, query_start_loc_cpu=bounds, num_reqs=1,
            seq_lens=torch.tensor([end], dtype=torch.int32),
            num_actual_tokens=end - start, max_query_len=end - start, max_seq_len=end,
            block_table_tensor=torch.tensor([blocks], dtype=torch.int32), slot_mapping=slots,
        )  # fmt: skip
        builder = self.module.attn_backend.get_builder_cls()(
            self.spec, [NAME], self.config, torch.device("cpu")
        )
        metadata = builder.build(0, common)
        planned = plan_request(
            request=0, sampling_id=0, stride=16, offset=5, start=start, end=end, blocks=[blocks],
            block_sizes=[BLOCK], keep_below=2**31, queries=queries,
        )  # fmt: skip
        assert planned is not None
        self.recorder.begin(StepPlan(0, (planned,)))
        with set_forward_context({NAME: metadata}, self.config, slot_mapping={NAME: slots}):
            output: torch.Tensor = self.module(*(x.flatten(1) for x in values))
        self.recorder.finish()
        return output


def stored(store: RankStore, array: str, count: int) -> NDArray[np.float64]:
    spec = next(spec for _, _, spec in store.tensor_specs() if spec.path == array)
    bits = store.read_chunk(spec, 0)[:count].astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


@pytest.mark.parametrize(("window", "num_kv_heads"), [(None, 2), (24, 1)], ids=["full", "window"])
def test_queries_outputs_and_every_key_are_those_of_the_layers_own_steps(
    tmp_path: Path, window: int | None, num_kv_heads: int
) -> None:
    import torch

    layer = Layer(tmp_path, window=window, num_kv_heads=num_kv_heads)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(101, heads, DIM, generator=generator).bfloat16()
        for heads in (4, num_kv_heads, num_kv_heads)
    )
    asked = (0, 31, 70, 99, 100)
    outputs = [
        layer.step([x[start:end].clone() for x in (q, k, v)], start, asked)
        for start, end in ((0, 64), (64, 100), (100, 101))
    ]
    layer.recorder.close()
    attention_of_layer: Any = layer.found.record.attention
    assert attention_of_layer.softmax_scale == pytest.approx(DIM**-0.5)
    assert attention_of_layer.kv_head_of == tuple(head * num_kv_heads // 4 for head in range(4))
    assert attention_of_layer.not_replayable == ()
    assert layer.found.record.sliding_window == window

    queries, context, sampled = (
        open_store(tmp_path / f"{kind}-0.zarr") for kind in ("queries", "context", "rank")
    )
    assert queries.rows["position"][queries.rows["request"] == 0].tolist() == list(asked)
    assert not any(store.dropped for store in (queries, context, sampled))
    kept = context.rows["position"][context.rows["request"] == 0]
    grid = sampled.rows["position"][sampled.rows["request"] == 0]
    assert sorted([*kept.tolist(), *grid.tolist()]) == list(range(101))
    assert grid.tolist() == list(range(5, 101, 16))
    rows = list(asked)
    assert (stored(queries, "layers/00/q", 5) == q[rows].double().numpy()).all()
    assert (stored(context, "layers/00/k", len(kept)) == k[kept.tolist()].double().numpy()).all()
    output = torch.cat(outputs).reshape(101, 4, DIM)[rows].double().numpy()
    assert (stored(queries, "layers/00/o", 5) == output).all()
    expected, _, _ = attention(
        *(x.double().numpy() for x in (q[rows], k, v)),
        query_position=np.array(asked, np.int32),
        key_position=np.arange(101, dtype=np.int32),
        kv_head_of=attention_of_layer.kv_head_of,
        scale=attention_of_layer.softmax_scale,
        window=window,
    )
    relative = np.sqrt(np.square(output - expected).sum() / np.square(expected).sum())
    print(f"the layer's own output against float64 of its Q, K and V, relative: {relative:.2e}")
    assert relative < SAME_OUTPUT
