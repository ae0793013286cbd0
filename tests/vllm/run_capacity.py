"""Start an engine for each capacity case, one after another in this process, and write what its cache became.

python run_capacity.py OUT NAME…: by the names of `support.capacity_cases`.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.capacity_cases import CASES, Case
from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory


def started(case: Case) -> dict[str, Any]:
    """Return the cache of an engine with random weights."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(case.full_config))
    llm = LLM(model=str(folder), **case.engine_arguments)
    cache = llm.llm_engine.vllm_config.cache_config
    found = {
        "block_size": cache.block_size,
        "num_blocks": cache.num_gpu_blocks,
        "num_tokens": cache.kv_cache_size_tokens,
        "concurrency": cache.kv_cache_max_concurrency,
    }
    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
    return found


if __name__ == "__main__":
    out, *names = sys.argv[1:]
    by_name = {case.name: case for case in CASES}
    caches = {name: started(by_name[name]) for name in names}
    Path(out).write_text(json.dumps(caches))
