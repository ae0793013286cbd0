"""An offline capture in vLLM's own environment: `python -m kvtrace_capture.offline EVENTS_FD`.

`kvtrace capture run` starts it. The job is one line of JSON on stdin; the end of stdin means that whoever
asked is gone. Events go to the file descriptor EVENTS_FD, one line of JSON each: {"total": n}, {"done": n},
and at last {"error": text} if there is one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from tqdm import tqdm  # type: ignore[import-untyped]

from kvtrace.trace.capture_names import CLIENT_ID_KEY, WORKLOAD_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    Tell = Callable[[dict[str, Any]], None]

CLOSE_TIMEOUT_S: Final = 60.0
"""For the workers to write what is queued."""
_EXTENSION: Final = "kvtrace_capture.residual.WatchResidual"
_WATCH: Final = "kvtrace_watch_residual"


def main(events_fd: int) -> None:
    """Capture one job. Exits with 1, after an error event, if it cannot, and with 143 if it is stopped."""
    os.set_inheritable(events_fd, False)
    with os.fdopen(events_fd, "w", buffering=1, encoding="utf-8") as events:

        def tell(event: dict[str, Any]) -> None:
            events.write(json.dumps(event) + "\n")

        signal.signal(signal.SIGTERM, _stop)
        job = json.loads(sys.stdin.readline())
        threading.Thread(target=_stop_at_end_of_stdin, name="kvtrace-stdin", daemon=True).start()
        try:
            capture(job, tell)
        except Exception as error:
            tell({"error": f"{type(error).__name__}: {error}"})
            raise


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
        progress = _progress_bar(tell)
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
        if "messages" in prompt:
            token_ids = tokenizer.apply_chat_template(
                prompt["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        else:
            token_ids = tokenizer.encode(prompt["prompt"])
        if len(token_ids) >= limit:
            raise ValueError(
                f"line {prompt['line']}: its prompt has {len(token_ids):,} tokens; with an answer the model "
                f"takes {limit:,} at most (max_model_len)"
            )


def _progress_bar(tell: Tell) -> type[tqdm]:
    """Return what vLLM's `use_tqdm` takes: a bar that draws nothing and tells how many requests are done."""
    done = 0

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, iterable: Any = None, **options: Any) -> None:
            self._counts_requests = iterable is None  # else it counts prompts on their way into the engine
            super().__init__(iterable, **{**options, "file": io.StringIO()})

        def update(self, n: float = 1) -> None:
            nonlocal done
            if self._counts_requests:
                done += int(n)
                tell({"done": done})
            super().update(n)

    return Bar


def _stop(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being closed: do not interrupt that
    sys.exit(128 + signal_number)


def _stop_at_end_of_stdin() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]))
