"""Files of served requests, made by hand after the source of the tool that each is named for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.outcome_files import write_lines

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """\
name = "worked example"
date = 2026-11-30
[serving]
interval_s = 10
drain_s = 5
warmup_s = 2
[serving.classes.short]
prompt_tokens = [0, 2048]
ttft_ms = 2000
tpot_ms = 100
e2e_ms = 6000
[cost]
per_hour = 6.0
currency = "EUR"
gpus = 2
"""

ELEVEN: tuple[tuple[str, float, float | None, float | None, int, str | None, bool], ...] = (
    ("a", -2, 0, 1, 11, None, True),
    ("b", 0, 0.5, 2.5, 21, None, True),
    ("c", 1, 1.75, 2.75, 11, None, False),
    ("d", 2, 4.5, 5.5, 11, None, True),
    ("e", 3, None, None, 0, "rejected", True),
    ("f", 4, 4.5, 8.5, 41, None, True),
    ("g", 6, 6.5, None, 7, "failed", True),
    ("h", 8, 9, 11, 21, None, True),
    ("i", 9.5, 11, 17, 61, None, True),
    ("j", 9.9, 10.4, 10.4, 1, None, True),
    ("k", 10, 10.5, 11, 6, None, True),
)
"""Of the worked example: id, planned, first token, end, tokens, error, validator."""


def own_served(id_: str, planned_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {
        "id": id_, "planned_s": planned_s, "dispatched_s": planned_s, "first_token_s": planned_s + 0.5,
        "finished_s": planned_s + 2.5, "prompt_tokens": 100, "output_tokens": 21, "status": "completed",
        "accepted": True,
    } | fields  # fmt: skip


def eleven_lines() -> list[dict[str, Any]]:
    return [
        {
            "id": id_, "planned_s": planned, "dispatched_s": planned, "first_token_s": first,
            "finished_s": done, "prompt_tokens": 100, "output_tokens": tokens,
            "status": error or "completed", "accepted": None if error else right,
        }
        for id_, planned, first, done, tokens, error, right in ELEVEN
    ]  # fmt: skip


def served_file(folder: Path, lines: list[dict[str, Any]], name: str = "serving.jsonl") -> Path:
    return write_lines(folder / name, lines)


def bench_result(**fields: Any) -> dict[str, Any]:
    """Three requests, the last refused; as in docs/serving.md."""
    return {
        "date": "20261130-050000", "endpoint_type": "openai", "backend": "openai", "label": None,
        "model_id": "m", "tokenizer_id": "m", "num_prompts": 3, "request_id_prefix": "e1-",
        "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None, "duration": 4.0, "completed": 2,
        "failed": 1, "total_input_tokens": 300, "total_output_tokens": 32, "request_throughput": 0.5,
        "request_goodput": None, "input_lens": [100, 200, 50], "output_lens": [21, 11, 0],
        "ttfts": [0.5, 0.75, 0.0], "itls": [[0.1], [0.1], []], "latencies": [2.5, 1.75, 0.0],
        "start_times": [10.0, 11.0, 12.0], "queue_times": [0.0, 0.25, 0.0],
        "generated_texts": ["a", "b", ""], "errors": ["", "", "Service Unavailable"],
    } | fields  # fmt: skip


def sglang_result(**fields: Any) -> dict[str, Any]:
    return {
        "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": 4.0,
        "max_concurrency": None, "server_info": {}, "duration": 4.0, "completed": 2,
        "request_throughput": 0.5, "input_lens": [100, 200], "output_lens": [3, 0], "ttfts": [0.5, 0.0],
        "itls": [[0.25, 0.5], []], "generated_texts": ["a", ""], "errors": ["", "x"],
    } | fields  # fmt: skip


def guidellm_request(id_: str, targeted: float, **timings: Any) -> dict[str, Any]:
    return {
        "request_id": id_, "response_id": f"chatcmpl-{id_}", "request_args": "{}", "output": "a",
        "info": {
            "request_id": id_, "status": "completed", "error": None,
            "timings": {
                "targeted_start": targeted, "queued": targeted - 0.1, "request_start": targeted + 0.01,
                "first_token_iteration": targeted + 0.5, "last_token_iteration": targeted + 2.5,
                "request_end": targeted + 2.5, "token_iterations": 21,
            } | timings,
        },
        "input_metrics": {"text_tokens": 100}, "output_metrics": {"text_tokens": 21},
        "response_metrics": {"queue_time_ms": 3.1},
    }  # fmt: skip


def guidellm_file(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, "benchmarks": list(benchmarks),
    }  # fmt: skip


def guidellm_benchmark(strategy: str = "poisson", sample_size: int | None = None) -> dict[str, Any]:
    cut = guidellm_request("u2", 1000.5, request_end=None)
    refused = guidellm_request("u3", 1001.0)
    refused["info"]["error"] = "HTTPStatusError: Server error '503 Service Unavailable'"
    return {
        "type_": "generative_benchmark",
        "config": {
            "run_index": 0, "sample_size": sample_size, "strategy": {"type_": strategy, "rate": 2.0},
        },
        "start_time": 1000.0, "end_time": 1010.0,
        "requests": {
            "successful": [guidellm_request("u1", 1000.0)], "incomplete": [cut], "errored": [refused],
        },
    }  # fmt: skip


def aiperf_line(id_: str, issued_s: float, **fields: Any) -> dict[str, Any]:
    """Sent 10 ms after its credit, first token after 490 ms more, done 2.5 s after the credit; 21 tokens."""
    issued = round(issued_s * 1e9)
    return {
        "metadata": {
            "session_num": 0, "x_request_id": id_, "conversation_id": f"c{id_}", "turn_index": 0,
            "credit_issued_ns": issued, "request_start_ns": issued + 10_000_000, "request_ack_ns": None,
            "request_end_ns": issued + 2_500_000_000, "worker_id": "w", "record_processor_id": "r",
            "benchmark_phase": "profiling", "was_cancelled": False,
        } | fields.pop("metadata", {}),
        "metrics": {
            "time_to_first_token": {"value": 490.0, "unit": "ms"},
            "request_latency": {"value": 2490.0, "unit": "ms"},
            "input_sequence_length": {"value": 100, "unit": "tokens"},
            "output_sequence_length": {"value": 21, "unit": "tokens"},
        },
        "error": None,
    } | fields  # fmt: skip


def graded_line(id_: str, passed: bool) -> dict[str, Any]:
    return {
        "session_num": 0, "conversation_id": f"c{id_}", "x_request_id": id_, "task": "t",
        "grader_name": "math", "passed": passed, "unparsed": False,
    }  # fmt: skip
