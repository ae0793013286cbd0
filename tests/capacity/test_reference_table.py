"""The reference values: what an engine printed for each serving, and bytes that follow by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.capacity_cases import MIB, OF_THE_SPEC, SHAPE, Case

from kvtrace.capacity.model import ModelLayers, model_layers
from kvtrace.capacity.plan import CachePlan, plan_cache
from kvtrace.capacity.serving import Serving

GIB = 1 << 30

ENGINE = {
    # (bytes a block, blocks, tokens), as vLLM 0.32 printed them on a CPU
    "full": (327_680, 204, 26_112),
    "full fp8": (163_840, 409, 52_352),
    "full fp8, two layers native": (229_376, 292, 37_376),
    "full, blocks of 32, 500 tokens": (81_920, 819, 25_593),
    "full, 40 blocks": (327_680, 40, 5_120),
    "7 windows + 1": (65_536, 1_024, 20_971),
    "7 windows + 1, fp8": (32_768, 2_048, 41_943),
    "7 windows + 1, fp8, windows native": (65_536, 1_024, 22_795),
    "7 windows + 1, no hybrid manager": (524_288, 128, 16_384),
    "7 windows + 6": (458_752, 146, 10_678),
    "latent": (15_360, 4_369, 69_904),
    "2 convolutions + 2": (16_384, 4_096, 233_016),
    "2 convolutions + 2, fp8": (12_288, 5_461, 399_433),
    "1 KV head, 2 ranks": (163_840, 409, 52_352),
}


def planned(case: Case) -> CachePlan:
    model = model_layers(case.full_config, case.name, name=case.name, own_draft=case.own_draft)
    return plan_cache(model, Serving(**case.settings))


@pytest.mark.parametrize("case", OF_THE_SPEC, ids=lambda case: case.name)
def test_a_plan_has_the_blocks_and_tokens_that_the_engine_printed(case: Case) -> None:
    plan = planned(case)
    blocks = plan.num_blocks(64 * MIB)
    assert (plan.bytes_per_block, blocks, plan.num_tokens(blocks)) == ENGINE[case.name]


def test_a_state_makes_the_block_grow_more_under_a_smaller_dtype() -> None:
    # A state of 3 × 1,024 bf16 values is 6,144 bytes. A token takes 2 × 32 values: 128 bytes in bf16, where
    # 2 × 32 tokens hold it, and 64 in fp8, where it takes 3 × 32.
    blocks = [planned(case).pages.block_size for case in OF_THE_SPEC if "convolutions" in case.name]
    assert blocks == [64, 96]


LLAMA_8B = SHAPE | {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
}
LLAMA_70B = LLAMA_8B | {"num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192}
DEEPSEEK_V3 = SHAPE | {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
GEMMA_27B = SHAPE | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "hidden_size": 5376,
    "sliding_window": 1024,
}


def layers(config: dict[str, Any]) -> ModelLayers:
    return model_layers(config, "config.json", name="m")


@pytest.mark.parametrize(
    ("config", "cache_dtype", "expected"),
    [
        (LLAMA_8B, "auto", 131_072),
        (LLAMA_8B, "fp8", 65_536),
        (LLAMA_8B, "fp8_per_token_head", 67_584),
        (LLAMA_8B, "int8_per_token_head", 67_584),
        (LLAMA_8B, "int4_per_token_head", 34_816),
        (LLAMA_8B, "nvfp4", 36_864),
        (LLAMA_70B, "auto", 327_680),
        (LLAMA_70B, "fp8", 163_840),
        (DEEPSEEK_V3, "auto", 70_272),
        (DEEPSEEK_V3, "fp8", 35_136),
        (DEEPSEEK_V3, "fp8_ds_mla", 40_016),
        (DEEPSEEK_V3, "nvfp4_ds_mla", 21_472),
    ],
)
def test_bytes_of_a_token_of_known_models(config: dict[str, Any], cache_dtype: str, expected: int) -> None:
    plan = plan_cache(layers(config), Serving(max_model_len=8192, cache_dtype=cache_dtype))
    assert plan.bytes_per_token == expected


def test_packed_formats_keep_four_layers_native_and_save_less() -> None:
    # D = 128: 134 bytes packed, 512 native: (28 × 134 + 4 × 512) / 32 = 181.25 a layer and KV head
    plan = plan_cache(layers(LLAMA_8B), Serving(max_model_len=8192, cache_dtype="turboquant_4bit_nc"))
    assert plan.pages.native == (0, 1, 30, 31)
    assert plan.bytes_per_token == 8 * (28 * 134 + 4 * 512)


def test_two_skipped_layers_of_32_cost_their_own_bytes_and_longer_blocks() -> None:
    serving = Serving(max_model_len=8192, cache_dtype="fp8", skip_layers=("0", "1"))
    plan = plan_cache(layers(LLAMA_8B), serving)
    assert plan.pages.block_size == 32
    assert plan.bytes_per_block == 32 * 69_632
    assert 40 * GIB // plan.bytes_per_block * 32 == 616_800


@pytest.mark.parametrize(
    ("cache_dtype", "skip_layers", "tokens"),
    [("auto", (), 194_871), ("fp8", (), 389_742), ("fp8", ("sliding_window",), 239_353)],
)
def test_skipping_the_windows_of_a_mixed_model_saves_almost_nothing(
    cache_dtype: str, skip_layers: tuple[str, ...], tokens: int
) -> None:
    serving = Serving(
        max_model_len=32_768,
        cache_dtype=cache_dtype,
        skip_layers=skip_layers,
        max_num_batched_tokens=4096,  # two batches: 8,192 tokens in flight
    )
    plan = plan_cache(layers(GEMMA_27B), serving)
    assert plan.num_tokens(plan.num_blocks(40 * GIB)) == tokens


@pytest.mark.parametrize(("tp", "rank"), [(8, 40_960), (16, 40_960)])
def test_ranks_beyond_the_kv_heads_hold_copies(tp: int, rank: int) -> None:
    plan = plan_cache(layers(LLAMA_70B), Serving(max_model_len=8192, tp=tp))
    assert plan.bytes_per_token == rank
    assert plan.bytes_per_token * tp == {8: 327_680, 16: 655_360}[tp]
