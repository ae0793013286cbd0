"""SGLang: `bench_serving --output-file F --output-details`, one result a line.

Source: sglang 0.5.23, benchmark/serving.py. There are no start times and no ends: latencies can be told, a
cohort and so a goodput cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import shown, whole, whole_or_none
from kvtrace.outcomes.strict_files import located
from kvtrace.serving.formats.columns import chunk_gaps, columns, rate_and_load, result_objects
from kvtrace.serving.record import LoadRun, Served
from kvtrace.serving.times import microseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LISTS: Final = ("input_lens", "output_lens", "ttfts", "itls", "errors")


def is_sglang_bench(first: dict[str, Any]) -> bool:
    """Return whether an object is a result of SGLang's benchmark."""
    return {"server_info", "request_throughput", "dataset_name"} <= first.keys()


def read_sglang_bench(path: Path) -> Iterator[LoadRun | Served]:
    """Yield each result and its requests, whose clock begins when each was sent.

    Raises OutcomesError: lists differ in length, or a value is not what SGLang writes.
    """
    for number, (place, record) in enumerate(result_objects(path)):
        with located(path, place):
            if not is_sglang_bench(record):
                raise ValueError("is not a result of bench_serving")
            rate, load = rate_and_load(record)
            num = columns(record, _LISTS) if "ttfts" in record else 0
            duration, at_once = seconds(record, "duration"), whole_or_none(record, "max_concurrency")
        yield LoadRun(
            f"{path.stem}-{number}",
            "sglang bench_serving",
            load=load,
            stamps="chunks",
            has_ids=False,
            rate=rate,
            max_concurrency=at_once,
            duration_us=duration,
            refused="it has no start times, so no request can be placed in an interval"
            if num
            else "requests are not in it; run the benchmark with --output-details",
        )
        for index in range(num):
            with located(path, f"{place}, request {index}"):
                served = _served(record, index)
            yield served


def _served(record: dict[str, Any], index: int) -> Served:
    error = record["errors"][index]
    if not isinstance(error, str):
        raise ValueError(f"errors holds {shown(error)}, expected texts")
    num_tokens = whole({"output_lens": record["output_lens"][index]}, "output_lens")
    first = microseconds(record["ttfts"][index], "ttfts")
    return Served(
        id=f"#{index}",
        status="failed" if error or not num_tokens else "completed",
        dispatched_us=0,
        first_us=first if num_tokens else None,
        last_us=first + sum(chunk_gaps(record["itls"][index], "itls")) if num_tokens else None,
        prompt_tokens=whole({"input_lens": record["input_lens"][index]}, "input_lens"),
        output_tokens=num_tokens,
    )
