"""One offline engine in a process of its own: `python run_offline.py JOB.json`.

JOB.json: {"model", "engine": LLM arguments, "rounds": [[{"prompt" | "token_ids", "sampling", "cache_salt"}]],
"out"}. Writes to `out` what each request got (`prompt_nll` too where it asked for prompt_logprobs), what the
worker process looked like, how long a start took and, with "disable_log_stats": false, counts of drafts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    from vllm import LLM, SamplingParams

    started = time.monotonic()
    # On the CPU this is the share of RAM that must be free at the start; the default of 0.92 is not needed.
    llm = LLM(job["model"], **{"gpu_memory_utilization": 0.4} | job["engine"])
    start_s = time.monotonic() - started
    before = llm.collective_rpc(look_around)
    rounds = []
    for requests in job["rounds"]:
        prompts = [
            {
                **({"prompt_token_ids": r["token_ids"]} if "token_ids" in r else {"prompt": r["prompt"]}),
                **({"cache_salt": r["cache_salt"]} if "cache_salt" in r else {}),
            }
            for r in requests
        ]
        sampling = [SamplingParams(**r["sampling"]) for r in requests]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        rounds.append(
            [
                {
                    "prompt": list(o.prompt_token_ids),
                    "output": list(o.outputs[0].token_ids),
                    "finish_reason": o.outputs[0].finish_reason,
                    **({"prompt_nll": prompt_nll(o)} if o.prompt_logprobs else {}),
                }
                for o in outputs
            ]
        )
    result = {"rounds": rounds, "worker": before[0], "front_end": look_around(), "start_s": start_s}
    if job["engine"].get("disable_log_stats") is False:
        counts = [one for one in llm.get_metrics() if "spec_decode_num" in one.name and hasattr(one, "value")]
        result["drafts"] = {one.name.removeprefix("vllm:spec_decode_num_"): one.value for one in counts}
    Path(job["out"]).write_text(json.dumps(result))


def prompt_nll(output: Any) -> float:
    """Return the mean negative log likelihood of the prompt's tokens after the first, in nats."""
    tokens, logprobs = output.prompt_token_ids[1:], output.prompt_logprobs[1:]
    return -sum(at[token].logprob for token, at in zip(tokens, logprobs, strict=True)) / len(tokens)


def look_around(worker: Any = None) -> dict[str, Any]:
    """Return the process's threads, kvtrace modules, layers with a wrapped cache write, and its runner."""
    import threading

    wrapped, of_worker = [], {}
    if worker is not None:
        runner = type(worker.model_runner)
        of_worker = {
            "runner": f"{runner.__module__}.{runner.__qualname__}",
            "async_scheduling": worker.vllm_config.scheduler_config.async_scheduling,
        }
        layers = worker.vllm_config.compilation_config.static_forward_context
        impls = {name: layer.impl for name, layer in layers.items() if hasattr(layer, "impl")}
        wrapped = [name for name, impl in impls.items() if "do_kv_cache_update" in vars(impl)]
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "modules": sorted(name for name in sys.modules if name.startswith("kvtrace")),
        "wrapped": wrapped,
        **of_worker,
    }


if __name__ == "__main__":
    main(sys.argv[1])
