"""What a vLLM start-up log says of memory and cache.

Source of the lines: vLLM 0.32, `v1/worker/gpu_worker.py`, `cpu_worker.py`, `gpu_model_runner.py`,
`v1/core/kv_cache_utils.py`, `v1/engine/core.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvtrace.capacity.budget import logged_gib
from kvtrace.capacity.engine_facts import EngineFacts
from kvtrace.errors import InputError
from kvtrace.files.regular import read_start

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES: Final = 64 << 20
"""Start-up is at the beginning of a log."""
_NUMBER: Final = r"([0-9.]{1,20})"
_CONFIG: Final = re.compile(r"Initializing a V1 LLM engine[^\n]{0,20000}")
_POOL: Final = re.compile(rf"Available KV cache memory: {_NUMBER} GiB")
_RESERVED: Final = re.compile(rf"reserved {_NUMBER} GiB memory for KV Cache as specified")
_CPU_POOL: Final = re.compile(rf"(?:Auto|Explicitly) set \({_NUMBER}/[^)\n]{{1,40}}\) GiB for KV cache")
_WEIGHTS: Final = re.compile(rf"Model loading took {_NUMBER} GiB memory")
_REQUESTED: Final = re.compile(rf"Desired GPU memory utilization is \([0-9.]+, {_NUMBER} GiB\)")
_USAGE: Final = re.compile(
    rf"Actual usage is {_NUMBER} GiB for consumed memory \(weights \+ non-torch\), {_NUMBER} GiB for peak "
    rf"activation, and {_NUMBER} GiB for CUDAGraph memory"
)
_SIZE: Final = re.compile(
    r"(\w{2,10}) KV cache size: ([0-9,]{1,30}) tokens"
    r"(?:, Maximum concurrency for ([0-9,]{1,20}) tokens per request: ([0-9.]{1,20})x)?"
)
_BLOCKS: Final = re.compile(r"num_gpu_blocks is: ([0-9]{1,18})")
_BLOCK_SIZE: Final = re.compile(
    r"(?:Setting kv cache block size to|Setting attention block size to) ([0-9]{1,9})"
)


def read_engine_log(path: Path) -> EngineFacts:
    """Return what a log says; of several starts in one file, the last.

    Raises InputError: the file cannot be read, or says nothing of a KV cache.
    """
    try:
        text = read_start(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected vLLM's log") from error
    starts = list(_CONFIG.finditer(text))
    if starts:
        text = text[starts[-1].start() :]
    config = starts[-1].group() if starts else ""
    size, usage = _last(_SIZE, text), _last(_USAGE, text)
    pool = _last(_POOL, text) or _last(_RESERVED, text) or _last(_CPU_POOL, text)
    if size is None and pool is None:
        raise InputError(
            f'{path}: has neither "KV cache size" nor "Available KV cache memory"; expected the log of '
            "vLLM's start at level INFO"
        )
    weights, requested = _last(_WEIGHTS, text), _last(_REQUESTED, text)
    blocks, block_size = _last(_BLOCKS, text), _last(_BLOCK_SIZE, text)
    length = size.group(3) if size else None
    return EngineFacts(
        source=str(path),
        model=_setting(config, "model"),
        cache_dtype=_setting(config, "kv_cache_dtype"),
        max_model_len=int(length.replace(",", "")) if length else _count(config, "max_seq_len"),
        tp=_count(config, "tensor_parallel_size"),
        pp=_count(config, "pipeline_parallel_size"),
        dcp=_count(config, "decode_context_parallel_size"),
        is_cpu=size.group(1) == "CPU" if size else None,
        prefix_caching={"True": True, "False": False}.get(_setting(config, "enable_prefix_caching") or ""),
        block_size=int(block_size.group(1)) if block_size else None,
        num_blocks=int(blocks.group(1)) if blocks else None,
        num_tokens=int(size.group(2).replace(",", "")) if size else None,
        concurrency=float(size.group(4)) if size and size.group(4) else None,
        pool=logged_gib(pool.group(1)) if pool else None,
        weights=logged_gib(weights.group(1)) if weights else None,
        requested=logged_gib(requested.group(1)) if requested else None,
        consumed=logged_gib(usage.group(1)) if usage else None,
        activations=logged_gib(usage.group(2)) if usage else None,
        graphs=logged_gib(usage.group(3)) if usage else None,
    )


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007 -- the last is wanted
        pass
    return found


def _setting(config: str, name: str) -> str | None:
    found = re.search(rf"[ ,]{name}='?([^,' ]{{1,300}})'?(?:,|$)", config)
    return found.group(1) if found else None


def _count(config: str, name: str) -> int | None:
    value = _setting(config, name)
    return int(value) if value and value.isdecimal() and len(value) < 10 else None
