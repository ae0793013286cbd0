"""What `kvtrace capacity` reads of others: model configurations, an engine's log, its /metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from support.capacity_cases import CASES

from fuzz.odd import ODD, RAW, odd_json

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases

LOG: Final = (
    "INFO Initializing a V1 LLM engine (v0.32.0) with config: model='m', max_seq_len=512, "
    "tensor_parallel_size=1, kv_cache_dtype=fp8, enable_prefix_caching=True, x\n"
    "INFO Model loading took 14.99 GiB memory and 12.5 seconds\n"
    "INFO Available KV cache memory: 39.87 GiB\n"
    "INFO GPU KV cache size: 652,784 tokens, Maximum concurrency for 8,192 tokens per request: 79.69x\n"
)
METRICS: Final = (
    'vllm:cache_config_info{block_size="16",cache_dtype="fp8",kv_cache_dtype_skip_layers="[\'0\']",'
    'kv_cache_layout="LBHNC",kv_cache_memory_bytes="None",kv_cache_size_tokens="208896",'
    'num_gpu_blocks="13056"} 1.0\n'
)


def configs(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change the config.json of a model with windows, states, latents or all alike."""
    config = folder / "config.json"
    text = odd_json(random, random.choice(CASES).full_config) if random.random() < 0.9 else random.choice(RAW)
    config.write_text(text)
    return ("capacity", config, "--budget", "1GiB", "--skip-layers", "0,sliding_window", "--limit", "8")


def recipes(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a checkpoint's map of formats by layer."""
    listed = {
        f"model.layers.{layer}.self_attn": {"quant_algo": random.choice(("FP8", "NVFP4", "FP8_K_NVFP4_V"))}
        for layer in range(3)
    }
    content = {
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "MIXED_PRECISION",
            "kv_cache_quantized_layers": listed,
        }
    }
    recipe = folder / "hf_quant_config.json"
    recipe.write_text(odd_json(random, content) if random.random() < 0.9 else random.choice(RAW))
    if random.random() < 0.5:
        return ("capacity", _sound(folder), "--cache-dtype", recipe, "--write-recipe", folder / "out")
    return ("replay", bases.counted, "--cache-dtype", recipe, "-o", folder / "out")


def logs(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a log's numbers."""
    (folder / "vllm.log").write_text(_odd_number(random, LOG))
    return ("capacity", _sound(folder), "--from-log", folder / "vllm.log")


def metrics(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a label of /metrics."""
    (folder / "metrics").write_text(_odd_number(random, METRICS))
    return ("capacity", _sound(folder), "--from-metrics", folder / "metrics")


def _sound(folder: Path) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps(CASES[0].full_config))
    return config


def _odd_number(random: random.Random, text: str) -> str:
    words = text.replace('"', ' " ').split(" ")
    places = [place for place, word in enumerate(words) if any(character.isdecimal() for character in word)]
    words[random.choice(places)] = random.choice((str(random.choice(ODD)), random.choice(RAW), "9" * 18, "0"))
    return " ".join(words).replace(' " ', '"')
