"""Which layers own a cache, by the configurations that models really have."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrace.trace.cache_layers import CacheLayers, cache_layers

FOUR = {"num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("config", "own"),
    [
        (FOUR, [0, 1, 2, 3]),
        (FOUR | {"layer_types": ["linear_attention", "full_attention", "conv", "sliding_attention"]}, [1, 3]),
        (FOUR | {"layer_types": ["mamba", "chunked_attention", "moe", "deepseek_sparse_attention"]}, [1, 3]),
        (FOUR | {"full_attention_interval": 4}, [3]),
        (FOUR | {"hybrid_override_pattern": "M*-*"}, [1, 3]),
        (FOUR | {"attn_layer_indices": [2]}, [2]),
        (FOUR | {"attn_layer_period": 2, "attn_layer_offset": 1}, [1, 3]),
        (FOUR | {"attn_layer_period": 4, "attn_layer_offset": 0}, [0]),
        (FOUR | {"attn_type_list": [0, 1, 0, 1]}, [1, 3]),
        (FOUR | {"layers_block_type": ["mamba", "hybrid", "mamba", "attention"]}, [1, 3]),
        (FOUR | {"block_types": ["recurrent", "attention"]}, [1, 3]),
        (FOUR | {"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]}}, [3]),
        (FOUR | {"block_configs": [{"attention": {"no_op": n == 1}} for n in range(4)]}, [0, 2, 3]),
        ({"text_config": FOUR | {"full_attention_interval": 2}}, [1, 3]),
        ({"thinker_config": {"text_config": FOUR | {"full_attn_idxs": [0]}}}, [0]),
        (FOUR | {"num_kv_shared_layers": 1}, [0, 1, 2]),
    ],
)
def test_layers_that_write_a_cache_of_their_own(config: dict[str, Any], own: list[int]) -> None:
    assert cache_layers(config).own_cache(range(4)) == own


def test_a_layer_reads_the_last_cache_of_its_kind() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"] * 2
    found = cache_layers({"num_hidden_layers": 6, "num_kv_shared_layers": 3, "layer_types": kinds})
    assert found.shared == {3: 2, 4: 1, 5: 2}
    assert cache_layers({"num_hidden_layers": 6, "num_kv_shared_layers": 2}).shared == {4: None, 5: None}


def test_gemmas_default_kinds_say_which_cache_is_read() -> None:
    # transformers' Gemma4TextConfig: every sixth layer and the last attend in full.
    config = {"model_type": "gemma4_text", "num_hidden_layers": 10, "num_kv_shared_layers": 4}
    assert cache_layers(config).shared == {6: 4, 7: 4, 8: 4, 9: 5}


def test_heads_may_differ_by_layer() -> None:
    listed = cache_layers({"num_hidden_layers": 2, "num_key_value_heads": [2, 8]})
    assert [listed.heads(n, 1) for n in range(2)] == [2, 8]
    kinds = ["sliding_attention", "full_attention"]
    wide = {"num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": True}
    found = cache_layers({"num_hidden_layers": 2, "layer_types": kinds} | wide)
    assert [found.heads(n, 1) for n in range(2)] == [16, 4]
    assert found.k_serves_v == {1}


def test_mla_caches_one_latent_and_deepseek_v4_scales_of_its_own() -> None:
    assert cache_layers(FOUR | {"kv_lora_rank": 512}).tensors == ("k",)
    assert cache_layers(FOUR).tensors == ("k", "v")
    assert cache_layers(FOUR | {"model_type": "deepseek_v4"}).holds_scales


def test_what_an_engine_held_counts_before_what_a_configuration_says() -> None:
    said = CacheLayers(num_layers=4, stateful=frozenset((0, 1)), shared={3: 2})
    seen = CacheLayers(num_layers=4, stateful=frozenset((2,)), seen=frozenset((1, 3)))
    assert said.joined(seen).own_cache(range(4)) == [1, 3]


@pytest.mark.parametrize("value", [None, "4", -1, 10**9, [4], {}, True])
def test_a_count_that_is_none_is_unknown(value: object) -> None:
    config = {"num_hidden_layers": value, "num_kv_shared_layers": value, "full_attention_interval": value}
    assert cache_layers(config) == CacheLayers()
