"""Load a checkpoint in vLLM and print the KV-cache scales that reached each layer, before they are applied.

`python load_scales.py CHECKPOINT` in the vLLM environment. The cache is BF16, which every CPU takes; what is
loaded does not depend on that, only whether it is used.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(checkpoint: str) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsKVCacheMethod,
    )
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    found: dict[str, list[float]] = {}
    for method in (BaseKVCacheMethod, CompressedTensorsKVCacheMethod):
        finish = method.process_weights_after_loading

        def noting(self: Any, layer: Any, finish: Any = finish) -> None:
            if hasattr(layer, "k_scale"):
                found[layer.layer_name] = [float(layer.k_scale), float(layer.v_scale)]
            finish(self, layer)

        method.process_weights_after_loading = noting  # type: ignore[method-assign]
    LLM(
        checkpoint,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=2,
        max_num_batched_tokens=256,
    )
    print("FOUND " + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
