"""Makes `biased.kvtrace`, the second base of the incidents: a Qwen-like model with outlier key biases.

Usage, in the vLLM environment: python make_biased_base.py OUT. The weights are random, but for biases of K as
Qwen2.5 has them: a few channels some 30 times as wide as the others. Real vLLM serves it and the plug-in
captures; the traffic has the sample's labels and lengths like its own.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

NAME = "qwen-like-biased"
SEED = 2_027
POSITION_STRIDE = 28
NUM_TOKENS = 2_000
OUTLIER_CHANNELS = 3
LENGTHS = {
    "chat": (30, 70, 128),
    "code": (200, 700, 64),
    "language": (40, 90, 128),
    "retrieval": (1500, 3800, 32),
}
"""Workload → shortest and longest prompt, most output tokens."""
REQUESTS = {"chat": 26, "code": 24, "language": 24, "retrieval": 5}


def main(out: str) -> None:
    """Write the trace to `out`, in place of what is there."""
    target = Path(out).resolve()
    # Inside the directory: the trace keeps the model's path, and a machine's has no business in it.
    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):
        make_model(Path(NAME))
        capture(Path(NAME), Path(scratch) / "traces")
        (captured,) = (Path(scratch) / "traces").glob("*.kvtrace")
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(captured, target)


def make_model(path: Path) -> None:
    """Save a random model whose keys have outlier biases."""
    torch.manual_seed(SEED)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=NUM_TOKENS,
            hidden_size=384,
            intermediate_size=768,
            num_hidden_layers=5,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=4096,
            initializer_range=0.1,
        )
    )
    for layer in model.model.layers:
        bias = torch.randn_like(layer.self_attn.k_proj.bias)
        for head in bias.view(3, -1):
            head[torch.randperm(len(head))[:OUTLIER_CHANNELS]] *= 30
        layer.self_attn.k_proj.bias.data = bias
        layer.self_attn.v_proj.bias.data = 0.1 * torch.randn_like(layer.self_attn.v_proj.bias)
    model.to(torch.bfloat16).save_pretrained(path)


def capture(model: Path, directory: Path) -> None:
    """Serve random prompts; the plug-in makes a trace of its own in `directory`."""
    llm = LLM(
        model=str(model),
        served_model_name=NAME,
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=8,
        gpu_memory_utilization=0.2,  # on the CPU: the share of RAM that must be free at the start
        enable_prefix_caching=False,
        enforce_eager=True,
        kv_transfer_config=KVTransferConfig(
            kv_connector="KVTraceConnector",
            kv_connector_module_path="kvtrace_capture.connector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "directory": str(directory),
                "position_stride": POSITION_STRIDE,
                "seed": SEED,
                "flush_seconds": 3600.0,
            },
        ),
    )
    draw = random.Random(SEED)
    prompts, sampling = [], []
    for workload, count in REQUESTS.items():
        shortest, longest, outputs = LENGTHS[workload]
        # Each workload uses tokens of its own for the most part, so that their ranges differ a little.
        first = 400 * list(REQUESTS).index(workload)
        for number in range(count):
            length = draw.randint(shortest, longest)
            tokens = [first + draw.randrange(500) for _ in range(length)]
            prompts.append({"prompt_token_ids": [token % NUM_TOKENS for token in tokens]})
            sampling.append(
                SamplingParams(
                    temperature=1.0,
                    seed=number,
                    max_tokens=draw.randint(outputs // 4, outputs),
                    ignore_eos=True,
                    detokenize=False,
                    extra_args={"kvtrace_workload": workload, "kvtrace_id": f"{workload}-{number}"},
                )
            )
    llm.generate(prompts, sampling, use_tqdm=False)


if __name__ == "__main__":
    main(sys.argv[1])
