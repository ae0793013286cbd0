"""GuideLLM: `benchmarks.json`, one run a benchmark.

Source: guidellm 0.8.1, schemas/base/info.py (RequestTimings, epoch seconds) and scheduler/strategies.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import shown, table, text, text_or_none, whole_or_none
from kvtrace.outcomes.strict_files import located
from kvtrace.serving.record import Load, LoadRun, Served, Status
from kvtrace.serving.times import amount, milliseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOADS: Final[dict[str, Load]] = {
    "constant": "open", "poisson": "open", "trace": "open",
    "synchronous": "closed", "concurrent": "closed", "throughput": "closed",
}  # fmt: skip
_LISTS: Final[tuple[tuple[str, Status], ...]] = (
    ("successful", "completed"), ("incomplete", "cancelled"), ("errored", "failed"),
)  # fmt: skip
_REFUSALS: Final = ("429", "503", "Connection refused", "ConnectError")


def is_guidellm(document: dict[str, Any]) -> bool:
    """Return whether a document is GuideLLM's."""
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and "guidellm_version" in metadata and "benchmarks" in document


def read_guidellm(path: Path, document: dict[str, Any]) -> Iterator[LoadRun | Served]:
    """Yield each benchmark and its requests, those that its own end cut off too.

    Raises OutcomesError: a benchmark or a request is not what GuideLLM writes.
    """
    with located(path):
        version = text_or_none(table(document, "metadata"), "guidellm_version", most=40)
        benchmarks = document["benchmarks"]
        if not isinstance(benchmarks, list):
            raise ValueError("benchmarks is expected to be a list")
    for place, benchmark in enumerate(benchmarks):
        with located(path, f"benchmark {place}"):
            if not isinstance(benchmark, dict):
                raise ValueError("expected a JSON object")
            yield _run(benchmark, f"{path.stem}-{place}", version)
        for name, status in _LISTS:
            with located(path, f"benchmark {place}"):
                requests = table(benchmark, "requests").get(name) or []
                if not isinstance(requests, list):
                    raise ValueError(f"requests.{name} is expected to be a list")
            for index, request in enumerate(requests):
                with located(path, f"benchmark {place}, {name} {index}"):
                    if not isinstance(request, dict):
                        raise ValueError("expected a JSON object")
                    served = _served(request, status)
                yield served


def _run(benchmark: dict[str, Any], name: str, version: str | None) -> LoadRun:
    config = table(benchmark, "config")
    strategy = table(config, "strategy")
    kind = text(strategy, "type_", most=40)
    load = _LOADS.get(kind, "unknown")
    start, end = seconds(benchmark, "start_time"), seconds(benchmark, "end_time")
    if start is not None and end is not None and end < start:
        raise ValueError("its end_time is before its start_time")
    sample = config.get("sample_size")
    return LoadRun(
        name,
        "guidellm",
        load=load,
        planned_source="targeted",
        stamps="chunks",
        rate=amount(strategy, "rate"),
        max_concurrency=whole_or_none(strategy, "max_concurrency"),
        duration_us=None if start is None or end is None else end - start,
        tool_version=version,
        refused=None
        if sample is None
        else f"its lists are a sample of the requests (sample_size {shown(sample)}); "
        "run GuideLLM without a sample size",
    )


def _served(request: dict[str, Any], status: Status) -> Served:
    info = table(request, "info")
    timings = table(info, "timings")
    if status == "failed":
        error = info.get("error")
        if isinstance(error, str) and any(word in error[:2000] for word in _REFUSALS):
            status = "rejected"
    return Served(
        id=text_or_none(request, "response_id") or text(request, "request_id"),
        status=status,
        planned_us=seconds(timings, "targeted_start"),
        dispatched_us=seconds(timings, "request_start"),
        first_us=seconds(timings, "first_token_iteration"),
        last_us=seconds(timings, "last_token_iteration"),
        done_us=seconds(timings, "request_end"),
        prompt_tokens=whole_or_none(table(request, "input_metrics"), "text_tokens"),
        output_tokens=whole_or_none(table(request, "output_metrics"), "text_tokens"),
        engine_queue_us=milliseconds(table(request, "response_metrics"), "queue_time_ms"),
    )
