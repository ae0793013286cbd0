"""An offline capture in vLLM's own environment: `python -m kvtrace_capture.offline EVENTS_FD`.

`kvtrace capture run` starts it; `kvtrace_capture.job` says how it is given its job and what it tells.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from kvtrace.trace.capture_names import CLIENT_ID_KEY, WORKLOAD_KEY
from kvtrace_capture.job import CLOSE_TIMEOUT_S, progress_bar, run_job
from kvtrace_capture.prompt_tokens import check_length, token_ids_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace_capture.job import Tell

_EXTENSION: Final = "kvtrace_capture.residual.WatchResidual"
_WATCH: Final = "kvtrace_watch_residual"


def capture(job: dict[str, Any], tell: Tell) -> None:
    """Send every prompt of the job through one engine with capture on, then close the trace.

    job: {"model", "engine": arguments of `vllm.LLM`, "temperature", "prompts": [{"line", "prompt" or
    "messages", "max_tokens", "workload", "id"}]}. Raises ValueError: a prompt is too long, by its line.
    """
    from vllm import LLM, SamplingParams

    watched = job["engine"].get("enforce_eager") is True and "worker_extension_cls" not in job["engine"]
    extension = {"worker_extension_cls": _EXTENSION} if watched else {}
    llm = LLM(job["model"], **job["engine"], **extension)
    try:
        if watched:
            llm.collective_rpc(_WATCH)
        prompts = job["prompts"]
        _refuse_too_long(llm, prompts)
        tell({"total": len(prompts)})
        progress = progress_bar(tell)
        for kind, serve in (("messages", llm.chat), ("prompt", llm.generate)):
            mine = [prompt for prompt in prompts if kind in prompt]
            sampling = [
                SamplingParams(
                    temperature=job["temperature"],
                    max_tokens=prompt["max_tokens"],
                    extra_args=_labels(prompt),
                )
                for prompt in mine
            ]
            if mine:
                serve([prompt[kind] for prompt in mine], sampling, use_tqdm=progress)
    finally:
        llm.llm_engine.engine_core.shutdown(timeout=CLOSE_TIMEOUT_S)


def _labels(prompt: dict[str, Any]) -> dict[str, str]:
    labels = {WORKLOAD_KEY: prompt["workload"]}
    return labels | ({CLIENT_ID_KEY: prompt["id"]} if prompt.get("id") else {})


def _refuse_too_long(llm: Any, prompts: Sequence[dict[str, Any]]) -> None:
    limit = llm.llm_engine.model_config.max_model_len
    tokenizer = llm.get_tokenizer()
    for prompt in prompts:
        check_length(prompt, len(token_ids_of(prompt, tokenizer)), limit)


if __name__ == "__main__":
    run_job(int(sys.argv[1]), capture)
