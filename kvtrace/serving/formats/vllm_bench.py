"""`vllm bench serve --save-result --save-detailed`, and runs of `vllm bench sweep`.

Source: vLLM 0.32, benchmarks/serve.py. `start_times` are of a clock without an epoch. Lists are in the order
of the dataset and hold failed requests too; the request's id is not in them but for its prefix, which
`--metadata request_id_prefix=P` keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import shown, text_or_none, whole, whole_or_none
from kvtrace.outcomes.strict_files import located
from kvtrace.serving.formats.columns import columns, rate_and_load, result_objects
from kvtrace.serving.record import LoadRun, Served, Status
from kvtrace.serving.times import amount, microseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LISTS: Final = ("start_times", "queue_times", "ttfts", "latencies", "input_lens", "output_lens", "errors")
_REFUSALS: Final = ("Service Unavailable", "Too Many Requests", "ConnectionRefused", "Cannot connect")
_TEXT: Final = 4096


def is_vllm_bench(first: dict[str, Any]) -> bool:
    """Return whether an object is a result of vLLM's benchmark."""
    return {"request_throughput", "total_output_tokens", "latencies", "queue_times"} <= first.keys()


def read_vllm_bench(path: Path) -> Iterator[LoadRun | Served]:
    """Yield each result and its requests; without `--save-detailed` the result alone.

    Raises OutcomesError: lists differ in length, or a value is not what vLLM writes.
    """
    for number, (place, record) in enumerate(result_objects(path)):
        with located(path, place):
            if not is_vllm_bench(record):
                raise ValueError("is not a result of vllm bench serve")
            prefix = text_or_none(record, "request_id_prefix", most=200)
            has_detail = "start_times" in record
            run = _run(record, f"{path.stem}-{number}", prefix, has_detail=has_detail)
            num = columns(record, _LISTS) if has_detail else 0
        yield run
        for index in range(num):
            with located(path, f"{place}, request {index}"):
                served = _served(record, index, prefix)
            yield served


def _run(record: dict[str, Any], name: str, prefix: str | None, *, has_detail: bool) -> LoadRun:
    rate, load = rate_and_load(record)
    return LoadRun(
        name,
        "vllm bench serve",
        load=load,
        planned_source="dispatch",
        stamps="chunks",
        has_ids=prefix is not None,
        rate=rate,
        max_concurrency=whole_or_none(record, "max_concurrency"),
        duration_us=seconds(record, "duration"),
        tool_goodput=amount(record, "request_goodput"),
        refused=None if has_detail else "requests are not in it; run the benchmark with --save-detailed",
    )


def _served(record: dict[str, Any], index: int, prefix: str | None) -> Served:
    started = microseconds(record["start_times"][index], "start_times")
    queued = microseconds(record["queue_times"][index], "queue_times")
    one = {name: record[name][index] for name in ("input_lens", "output_lens")}
    num_tokens = whole(one, "output_lens")
    status = _status(record["errors"][index], num_tokens)
    latency = microseconds(record["latencies"][index], "latencies")
    until_first = microseconds(record["ttfts"][index], "ttfts")
    return Served(
        id=f"{prefix if prefix is not None else '#'}{index}",
        status=status,
        planned_us=started - queued,
        dispatched_us=started,
        first_us=started + until_first if num_tokens else None,
        done_us=started + latency if latency else None,
        prompt_tokens=whole(one, "input_lens"),
        output_tokens=num_tokens,
    )


def _status(error: Any, num_tokens: int) -> Status:
    if not isinstance(error, str):
        raise ValueError(f"errors holds {shown(error)}, expected texts")
    if not error:
        return "completed" if num_tokens else "failed"
    return "rejected" if any(word in error[:_TEXT] for word in _REFUSALS) else "failed"
