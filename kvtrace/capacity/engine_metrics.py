"""What /metrics of a running vLLM says of its cache: the labels of `vllm:cache_config_info`.

Source: vLLM 0.32, `v1/metrics/loggers.py`: every field of `CacheConfig`, as text.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from kvtrace.capacity.budget import exactly
from kvtrace.capacity.engine_facts import EngineFacts
from kvtrace.errors import InputError
from kvtrace.files.regular import read_start

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES: Final = 64 << 20
_LINE: Final = re.compile(
    r"^vllm:cache_config_info\{([^\n]{1,100000})\} 1(?:\.0)?(?: [0-9]+)?$", re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w{1,80})="((?:[^"\\]|\\.){0,10000})"')


def read_engine_metrics(path: Path) -> EngineFacts:
    """Return what a saved page of /metrics says of engine 0's cache.

    Raises InputError: the file cannot be read, has no such line, or engines that differ.
    """
    try:
        text = read_start(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a saved /metrics") from error
    return engine_facts_of(text, str(path))


def engine_facts_of(text: str, source: str) -> EngineFacts:
    """Return what a page of /metrics says; `source` names it in messages. Raises InputError as above."""
    lines = _LINE.findall(text)
    if not lines:
        raise InputError(
            f"{source}: has no vllm:cache_config_info; save it with curl -s http://HOST:8000/metrics > FILE"
        )
    labels = [dict(_LABEL.findall(line)) for line in lines]
    one = labels[0]
    for other in labels[1:]:
        if any(other.get(name) != one.get(name) for name in ("num_gpu_blocks", "cache_dtype", "block_size")):
            raise InputError(f"{source}: its engines differ in blocks or cache dtype; keep the lines of one")
    pool = _count(one, "kv_cache_memory_bytes")
    skip = _parsed(one.get("kv_cache_dtype_skip_layers", "[]"))
    return EngineFacts(
        source=source,
        cache_dtype=one.get("cache_dtype"),
        skip_layers=tuple(str(name)[:40] for name in skip) if isinstance(skip, list) else (),
        prefix_caching={"True": True, "False": False}.get(one.get("enable_prefix_caching", "")),
        layout=None if one.get("kv_cache_layout") == "None" else one.get("kv_cache_layout"),
        block_size=_count(one, "block_size"),
        num_blocks=_count(one, "num_gpu_blocks"),
        num_tokens=_count(one, "kv_cache_size_tokens"),
        concurrency=_number(one, "kv_cache_max_concurrency"),
        pool=exactly(pool) if pool else None,
    )


def _count(labels: dict[str, str], name: str) -> int | None:
    value = labels.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 19 else None


def _number(labels: dict[str, str], name: str) -> float | None:
    try:
        return float(labels.get(name, ""))
    except ValueError:
        return None


def _parsed(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
