"""`run_offline.py` with a model one of whose layers writes its cache itself, past the plug-in's hook.

The layer that KVTRACE_BYPASSING_LAYER names does as vLLM 0.33's fused models do: it writes K and V, then
calls attention without them. The engine must run in this process (ONE_PROCESS).
"""

from __future__ import annotations

import os
import sys
from typing import Any

import run_offline


def main(job_file: str) -> None:
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.attention.attention import get_attention_context

    bypassing, original = os.environ["KVTRACE_BYPASSING_LAYER"], Attention.forward

    def forward(self: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        if self.layer_name != bypassing:
            return original(self, query, key, value, *rest, **named)
        _, _, kv_cache, slot_mapping = get_attention_context(self.layer_name)
        if slot_mapping is not None:
            heads = (-1, self.num_kv_heads, self.head_size)
            write = type(self.impl).do_kv_cache_update  # the class's own, as a kernel would
            write(self.impl, self, key.view(heads), value.view(heads), kv_cache, slot_mapping)
        return original(self, query, None, None, *rest, **named)

    Attention.forward = forward
    run_offline.main(job_file)


if __name__ == "__main__":
    main(sys.argv[1])
