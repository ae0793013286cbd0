"""Load a tiny MLA model with scales under every known name, and print what reached each layer.

`python load_mla.py DIRECTORY` in the vLLM environment; the cache is BF16, which the CPU's MLA takes alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NAMES = ("k_proj.k_scale", "k_scale", "mla_attn.mla_attn.k_scale", "kv_scale")


def main(directory: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    from safetensors.torch import save_file
    from support.vllm_checkpoints import write_tiny_mla_model
    from vllm import LLM
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    write_tiny_mla_model(directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": len(NAMES)}
    config |= {"first_k_dense_replace": len(NAMES)}
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
        "ignore": ["model*", "lm_head"],
    }
    (directory / "config.json").write_text(json.dumps(config))
    scales = {f"model.layers.{n}.self_attn.{name}": torch.tensor(0.25) for n, name in enumerate(NAMES)}
    save_file(scales, directory / "model.safetensors")
    finish = BaseKVCacheMethod.process_weights_after_loading
    found: dict[str, float] = {}

    def noting(self: Any, layer: Any) -> None:
        if hasattr(layer, "k_scale"):
            found[layer.layer_name] = float(layer.k_scale)
        finish(self, layer)

    BaseKVCacheMethod.process_weights_after_loading = noting  # type: ignore[method-assign]
    LLM(
        str(directory),
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
    main(Path(sys.argv[1]))
