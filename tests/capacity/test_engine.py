"""What an engine said, from its log and from /metrics, in the words that vLLM 0.32 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtrace.capacity.budget import GIB, read_budget
from kvtrace.capacity.engine_log import read_engine_log
from kvtrace.capacity.engine_metrics import read_engine_metrics
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

LOG = """\
INFO 11-30 10:00:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='org/m', \
speculative_config=None, tokenizer='org/m', dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=2, pipeline_parallel_size=1, decode_context_parallel_size=1, kv_cache_dtype=fp8, \
enable_prefix_caching=True, kernel_config=x
INFO 11-30 10:00:20 [gpu_model_runner.py:5149] Model loading took 14.99 GiB memory and 12.5 seconds
INFO 11-30 10:00:40 [gpu_worker.py:760] Available KV cache memory: 39.87 GiB
INFO 11-30 10:00:41 [kv_cache_utils.py:2325] GPU KV cache size: 652,784 tokens, Maximum concurrency for \
8,192 tokens per request: 79.69x
INFO 11-30 10:00:50 [gpu_worker.py:1035] Free memory on device (78.9/79.11 GiB) on startup. Desired GPU \
memory utilization is (0.92, 72.78 GiB). Actual usage is 15.5 GiB for consumed memory (weights + non-torch), \
1.2 GiB for peak activation, and 0.5 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with …
"""
METRICS = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    'vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",enable_prefix_caching="True",engine="0",'
    'kv_cache_dtype_skip_layers="[\'0\', \'1\']",kv_cache_layout="LBHNC",kv_cache_max_concurrency="25.5",'
    'kv_cache_memory_bytes="None",kv_cache_size_tokens="208896",num_gpu_blocks="13056"} 1.0\n'
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "said"
    path.write_text(text)
    return path


def test_a_log_tells_weights_pool_and_rest_apart(tmp_path: Path) -> None:
    facts = read_engine_log(written(tmp_path, LOG))
    assert facts.weights is not None
    assert facts.weights.num_bytes == round(14.99 * GIB)
    assert facts.pool is not None
    assert facts.rest_bytes == pytest.approx((72.78 - 14.99 - 39.87) * GIB, abs=4)
    assert facts.activations is not None
    assert facts.graphs is not None
    assert (facts.activations.num_bytes, facts.graphs.num_bytes) == (round(1.2 * GIB), GIB // 2)


def test_a_log_tells_what_was_served_and_its_capacity(tmp_path: Path) -> None:
    facts = read_engine_log(written(tmp_path, LOG))
    assert (facts.model, facts.cache_dtype, facts.tp, facts.pp, facts.is_cpu) == ("org/m", "fp8", 2, 1, False)
    assert (facts.max_model_len, facts.num_tokens, facts.concurrency) == (8_192, 652_784, 79.69)
    assert facts.prefix_caching is True


def test_the_last_start_of_a_log_counts(tmp_path: Path) -> None:
    again = LOG.replace("39.87", "20.11").replace("652,784", "329,000")
    assert read_engine_log(written(tmp_path, LOG + again)).num_tokens == 329_000


def test_two_decimals_of_a_log_are_a_range(tmp_path: Path) -> None:
    pool = read_engine_log(written(tmp_path, LOG)).pool
    assert pool is not None
    assert pool.most - pool.least == pytest.approx(0.01 * GIB, abs=2)
    assert pool.least < 39.87 * GIB < pool.most


def test_a_cpu_engine_says_its_pool_in_other_words(tmp_path: Path) -> None:
    text = (
        "(Worker) Explicitly set (0.06/7.75) GiB for KV cache on node 0.\n"
        "CPU KV cache size: 26,112 tokens, Maximum concurrency for 512 tokens per request: 51.00x\n"
    )
    facts = read_engine_log(written(tmp_path, text))
    assert (facts.is_cpu, facts.num_tokens, facts.weights, facts.rest_bytes) == (True, 26_112, None, None)
    assert facts.pool is not None


def test_metrics_tell_blocks_and_skipped_layers(tmp_path: Path) -> None:
    facts = read_engine_metrics(written(tmp_path, METRICS))
    assert (facts.cache_dtype, facts.block_size, facts.num_blocks) == ("fp8_e4m3", 16, 13_056)
    assert (facts.num_tokens, facts.concurrency, facts.layout) == (208_896, 25.5, "LBHNC")
    assert facts.skip_layers == ("0", "1")
    assert facts.pool is None


def test_metrics_of_engines_that_differ_are_refused(tmp_path: Path) -> None:
    other = METRICS.replace('engine="0"', 'engine="1"').replace("13056", "13000")
    with pytest.raises(InputError, match="engines differ"):
        read_engine_metrics(written(tmp_path, METRICS + other))


def test_files_of_something_else_are_one_clear_line(tmp_path: Path) -> None:
    path = written(tmp_path, "nothing of a cache\n")
    with pytest.raises(InputError, match="KV cache size"):
        read_engine_log(path)
    with pytest.raises(InputError, match="curl -s"):
        read_engine_metrics(path)
    with pytest.raises(InputError, match="is a directory"):
        read_engine_log(tmp_path)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("64MiB", 64 << 20), ("40GiB", 40 << 30), ("40G", 40 << 30), ("40GB", 40 * 10**9), ("1024", 1024)],
)
def test_a_budget_is_read_as_people_write_it(text: str, num_bytes: int) -> None:
    assert read_budget(text).num_bytes == num_bytes


@pytest.mark.parametrize("text", ["0", "-1GiB", "plenty", "1e9", "9999TiB", ""])
def test_an_odd_budget_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--budget"):
        read_budget(text)
