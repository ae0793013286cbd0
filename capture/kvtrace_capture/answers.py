"""Answers and log-probabilities of one variant: `python -m kvtrace_capture.answers EVENTS_FD`.

`kvtrace quality run` starts it; `kvtrace_capture.job` says how. Prompts go through the engine in the job's
order, some at a time, and what is done is appended to files of JSON lines, so that a killed job loses little:

    answers   {"id", "answer", "output_tokens", "prompt_token_ids", "token_ids", "top"}
    scores    {"id", "top"}: the teacher's answers, scored as prompts

`top` has one entry a generation step: [log-probability of the token that is there, [[token id,
log-probability], …]], most probable first. Nothing of vLLM's is imported but its public classes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm import LLM, SamplingParams
from vllm import __version__ as vllm_version

from kvtrace.trace.capture_names import CLIENT_ID_KEY
from kvtrace_capture.job import CLOSE_TIMEOUT_S, progress_bar, run_job
from kvtrace_capture.prompt_tokens import check_length, token_ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace_capture.job import Tell

_EXTENSION: Final = "kvtrace_capture.answers.TellAttention"
_TELL: Final = "kvtrace_attention"
_MOST_BY_DEFAULT: Final = 20
"""Log-probabilities a position that vLLM gives unless it is asked for more."""


class TellAttention:
    """Mixed into vLLM's worker."""

    def kvtrace_attention(self) -> dict[str, Any]:
        """Return what the layers' attention really is: backends, cache dtypes, and ends of their scales."""
        layers = self.vllm_config.compilation_config.static_forward_context.values()  # type: ignore[attr-defined]
        found = [layer for layer in layers if hasattr(layer, "attn_backend")]
        scales = [
            float(getattr(layer, name))
            for layer in found
            for name in ("_k_scale_float", "_v_scale_float")
            if getattr(layer, name, None) is not None
        ]
        return {
            "backends": sorted({str(layer.attn_backend.get_name()) for layer in found}),
            "cache_dtypes": sorted({str(getattr(layer, "kv_cache_dtype", None)) for layer in found}),
            "smallest_scale": min(scales, default=None),
            "largest_scale": max(scales, default=None),
        }


def answer(job: dict[str, Any], tell: Tell) -> None:
    """Answer what is not answered, then score what is not scored.

    job: {"model", "engine": arguments of `vllm.LLM`, "prompts": [{"line", "id", "prompt" or "messages",
    "max_tokens"}] in order, "at_once", "top": log-probabilities a step, "answers", "scores", "facts":
    files, "teacher": file of the answers to score}. Raises ValueError: a prompt is too long, by its line.
    """
    engine = {"max_logprobs": max(job["top"], _MOST_BY_DEFAULT), **job["engine"]}
    llm = LLM(job["model"], **engine, worker_extension_cls=_EXTENSION)
    try:
        config = llm.llm_engine.model_config
        facts = llm.collective_rpc(_TELL)[0]
        facts = {"vllm": vllm_version, "dtype": str(config.dtype).removeprefix("torch."), **facts}
        Path(job["facts"]).write_text(json.dumps(facts), encoding="utf-8")
        tell({"engine": facts})
        tokenizer = llm.get_tokenizer()
        prompts = [{**one, "token_ids": token_ids_of(one, tokenizer)} for one in job["prompts"]]
        for one in prompts:
            check_length(one, len(one["token_ids"]), config.max_model_len)
        answers, scores = Path(job["answers"]), Path(job["scores"])
        to_answer, to_score = _not_in(answers, prompts), _not_in(scores, prompts)
        tell({"total": len(to_answer) + len(to_score)})
        progress = progress_bar(tell)
        _append(answers, _answered(llm, to_answer, job, progress))
        taught = {line["id"]: line["token_ids"] for line in lines_of(Path(job["teacher"]))}
        scored = [(one, taught[one["id"]]) for one in to_score]
        _append(scores, _scored(llm, scored, job, config.max_model_len, progress))
    finally:
        llm.llm_engine.engine_core.shutdown(timeout=CLOSE_TIMEOUT_S)


def _answered(
    llm: Any, prompts: Sequence[dict[str, Any]], job: dict[str, Any], progress: Any
) -> Iterator[dict[str, Any]]:
    for some in _batches(prompts, job["at_once"]):
        sampling = [
            SamplingParams(
                temperature=0.0,
                max_tokens=one["max_tokens"],
                logprobs=job["top"],
                extra_args={CLIENT_ID_KEY: one["id"]},
            )
            for one in some
        ]
        given = llm.generate(
            [{"prompt_token_ids": one["token_ids"]} for one in some], sampling, use_tqdm=progress
        )
        for one, output in zip(some, given, strict=True):
            best = output.outputs[0]
            token_ids = list(best.token_ids)
            yield {
                "id": one["id"],
                "answer": best.text,
                "output_tokens": len(token_ids),
                "prompt_token_ids": one["token_ids"],
                "token_ids": token_ids,
                "top": _top(token_ids, best.logprobs, job["top"]),
            }


def _scored(
    llm: Any,
    taught: Sequence[tuple[dict[str, Any], list[int]]],
    job: dict[str, Any],
    max_model_len: int,
    progress: Any,
) -> Iterator[dict[str, Any]]:
    """Score each answer as a prompt; one token is generated and not used, and needs its room."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=job["top"])
    for some in _batches(taught, job["at_once"]):
        texts = [(one["token_ids"] + token_ids)[: max_model_len - 1] for one, token_ids in some]
        given = llm.generate([{"prompt_token_ids": text} for text in texts], sampling, use_tqdm=progress)
        for (one, _), text, output in zip(some, texts, given, strict=True):
            start = len(one["token_ids"])
            yield {"id": one["id"], "top": _top(text[start:], output.prompt_logprobs[start:], job["top"])}


def _top(token_ids: Sequence[int], logprobs: Sequence[Any], most: int) -> list[Any]:
    """Return, a step, the log-probability of its token and the most probable ones with theirs."""
    found = []
    for token_id, here in zip(token_ids, logprobs, strict=True):
        ranked = sorted(here.items(), key=lambda one: (one[1].rank, one[0]))[:most]
        found.append([here[token_id].logprob, [[token, one.logprob] for token, one in ranked]])
    return found


def _batches(of: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(of), size):
        yield of[start : start + size]


def _append(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
            file.flush()


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of lines; none where there is no file."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def _not_in(path: Path, prompts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    done = {line["id"] for line in lines_of(path)}
    return [one for one in prompts if one["id"] not in done]


if __name__ == "__main__":
    run_job(int(sys.argv[1]), answer)
