"""What each tool's file says of served requests. Files are made by hand after the tools' source, but one.

`files/vllm_bench_serve.json` was written by vLLM 0.32 on a CPU (SmolLM2-135M, BF16 cache); its tokenizer's
path alone was shortened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.outcome_files import write_json, write_lines
from support.serving_files import (
    aiperf_line,
    bench_result,
    eleven_lines,
    graded_line,
    guidellm_benchmark,
    guidellm_file,
    own_served,
    served_file,
    sglang_result,
)

from kvtrace.errors import OutcomesError
from kvtrace.serving.formats import read_served
from kvtrace.serving.record import LoadRun, Served

FILES = Path(__file__).parent / "files"


def read(path: Path) -> tuple[list[LoadRun], list[Served]]:
    items = list(read_served(path))
    return [one for one in items if isinstance(one, LoadRun)], [
        one for one in items if isinstance(one, Served)
    ]


def test_an_own_line_becomes_whole_microseconds(tmp_path: Path) -> None:
    line = own_served(
        "r1", 1.25, phase="prefix warm-up", retries=2, cost=0.5, engine_queue_s=0.003,
        engine_first_token_s=0.4, **{"class": "short"},
    )  # fmt: skip
    (run,), (served,) = read(served_file(tmp_path, [line]))
    assert (run.load, run.planned_source, run.stamps) == ("unknown", "trace", "tokens")
    assert (served.planned_us, served.first_us, served.done_us) == (1_250_000, 1_750_000, 3_750_000)
    assert (served.phase, served.workload, served.retries, served.cost) == ("prefix warm-up", "short", 2, 0.5)
    assert (served.engine_queue_us, served.engine_first_us) == (3_000, 400_000)


def test_times_of_tokens_say_first_last_and_how_many(tmp_path: Path) -> None:
    line = own_served("r1", first_token_s=None, output_tokens=None, token_times_s=[0.5, 0.75, 2.5])
    _, (served,) = read(served_file(tmp_path, [line]))
    assert (served.first_us, served.last_us, served.output_tokens) == (500_000, 2_500_000, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "ok"}, "status is 'ok', expected one of completed, rejected"),
        ({"phase": "warm"}, "phase is 'warm', expected one of measured, engine warm-up"),
        ({"planned_s": None}, "planned_s is None, expected seconds"),
        ({"planned_s": 1.8e12}, "too large for seconds; is it in another unit?"),
        ({"planned_s": True}, "planned_s is True, expected seconds"),
        ({"finished_s": None}, "finished_s is None, expected seconds: the request was completed"),
        ({"first_token_s": 9.0}, "done is before first; are all times of one clock?"),
        ({"token_times_s": [2, 1], "output_tokens": None}, "token_times_s is expected to rise"),
        ({"token_times_s": [1, 2]}, "output_tokens is 21, token_times_s has 2"),
        ({"accepted": 1}, "accepted is 1, expected true or false"),
        ({"retries": -1}, "retries is -1"),
        ({"cost": -0.5}, "cost is -0.5"),
        ({"answer": "x"}, "has 'answer'; known are id"),
        ({"engine_queue_s": -1}, "engine_queue_s is -1, expected 0 or more"),
    ],
)
def test_an_own_line_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = served_file(tmp_path, [own_served("a"), own_served("b") | change])
    with pytest.raises(OutcomesError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: line 2: ")
    assert reason in str(error.value)


def test_a_real_result_of_vllm_bench_serve_gives_every_request() -> None:
    (run,), served = read(FILES / "vllm_bench_serve.json")
    written = json.loads((FILES / "vllm_bench_serve.json").read_text())
    assert (run.load, run.rate, run.planned_source, run.stamps) == ("open", 2.0, "dispatch", "chunks")
    assert run.tool_goodput == written["request_goodput"]
    assert [one.id for one in served] == [f"b1-{number}" for number in range(10)]
    assert {one.status for one in served} == {"completed"}
    for number, one in enumerate(served):
        assert one.done_us is not None
        assert one.dispatched_us is not None
        assert one.first_us is not None
        assert one.done_us - one.dispatched_us == pytest.approx(1e6 * written["latencies"][number], abs=1)
        assert one.first_us - one.dispatched_us == pytest.approx(1e6 * written["ttfts"][number], abs=1)
        assert one.output_tokens == written["output_lens"][number]
    assert sum(one.prompt_tokens or 0 for one in served) == written["total_input_tokens"]


def test_a_result_of_vllm_plans_from_sending_and_tells_refusals(tmp_path: Path) -> None:
    (run,), served = read(write_json(tmp_path / "r.json", bench_result()))
    assert run.has_ids
    assert [one.status for one in served] == ["completed", "completed", "rejected"]
    # the second waited 0.25 s for the client's own limit
    assert [one.planned_us for one in served] == [10_000_000, 10_750_000, 12_000_000]
    assert (served[1].dispatched_us, served[1].done_us) == (11_000_000, 12_750_000)
    assert (served[2].first_us, served[2].done_us) == (None, None)


def test_results_that_were_appended_are_runs_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("\n".join(json.dumps(bench_result()) for _ in range(3)))
    runs, served = read(tmp_path / "r.json")
    assert [run.name for run in runs] == ["r-0", "r-1", "r-2"]
    assert len(served) == 9


def test_a_result_without_detail_is_refused_for_goodput_and_kept(tmp_path: Path) -> None:
    bare = {
        key: value for key, value in bench_result().items() if key not in ("start_times", "ttfts", "errors")
    }
    (run,), served = read(write_json(tmp_path / "r.json", bare))
    assert served == []
    assert run.refused == "requests are not in it; run the benchmark with --save-detailed"


@pytest.mark.parametrize(
    ("rate", "concurrency", "load"), [("inf", 8, "closed"), ("inf", None, "burst"), (4.0, 8, "open")]
)
def test_how_load_was_offered_is_read_and_called_what_it_is(
    tmp_path: Path, rate: object, concurrency: int | None, load: str
) -> None:
    result = bench_result(request_rate=rate, max_concurrency=concurrency)
    (run,), _ = read(write_json(tmp_path / "r.json", result))
    assert run.load == load


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ttfts": [0.5]}, "result 1: its lists have 1, 3 requests"),
        ({"errors": None}, "result 1: errors is expected to be a list"),
        ({"latencies": [1.0, -1.0, 0.0]}, "result 1, request 1: latencies is -1.0"),
        ({"ttfts": [float("nan"), 0, 0]}, "result 1, request 0: ttfts is nan"),
        ({"output_lens": [1.5, 1, 0]}, "result 1, request 0: output_lens is 1.5"),
        ({"request_rate": "fast"}, "result 1: request_rate is 'fast'"),
        ({"errors": [1, "", ""]}, "result 1, request 0: errors holds 1"),
    ],
)
def test_a_result_of_vllm_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write_json(tmp_path / "r.json", bench_result(**change))
    with pytest.raises(OutcomesError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {reason}")


def test_sglang_gives_latencies_from_sending_and_no_goodput(tmp_path: Path) -> None:
    (run,), (one, failed) = read(write_json(tmp_path / "r.json", sglang_result()))
    assert run.refused == "it has no start times, so no request can be placed in an interval"
    assert (one.planned_us, one.dispatched_us, one.first_us, one.done_us) == (None, 0, 500_000, None)
    assert one.last_us == 1_250_000  # 0.5 + 0.25 + 0.5: a lower bound of the end
    assert (failed.status, failed.first_us) == ("failed", None)
    (tmp_path / "r.jsonl").write_text(json.dumps(sglang_result()) + "\n")
    assert len(read(tmp_path / "r.jsonl")[1]) == 2


def test_guidellm_keeps_what_its_own_end_cut_off(tmp_path: Path) -> None:
    (run,), served = read(write_json(tmp_path / "b.json", guidellm_file(guidellm_benchmark())))
    assert (run.load, run.rate, run.duration_us, run.tool_version) == ("open", 2.0, 10_000_000, "0.8.1")
    assert [(one.id, one.status) for one in served] == [
        ("chatcmpl-u1", "completed"), ("chatcmpl-u2", "cancelled"), ("chatcmpl-u3", "rejected"),
    ]  # fmt: skip
    assert (served[0].planned_us, served[0].dispatched_us) == (1_000_000_000, 1_000_010_000)
    assert served[0].engine_queue_us == 3_100


@pytest.mark.parametrize("strategy", ["synchronous", "concurrent", "throughput"])
def test_closed_strategies_of_guidellm_are_called_closed(tmp_path: Path, strategy: str) -> None:
    (run,), _ = read(write_json(tmp_path / "b.json", guidellm_file(guidellm_benchmark(strategy))))
    assert run.load == "closed"


def test_a_sample_of_guidellms_requests_is_refused_for_goodput(tmp_path: Path) -> None:
    (run,), _ = read(write_json(tmp_path / "b.json", guidellm_file(guidellm_benchmark(sample_size=20))))
    assert run.refused is not None
    assert run.refused.startswith("its lists are a sample of the requests (sample_size 20)")


def test_aiperf_plans_by_credits_and_is_graded_by_the_file_beside_it(tmp_path: Path) -> None:
    lines = [
        aiperf_line("w", 99.0, metadata={"benchmark_phase": "warmup"}),
        aiperf_line("a", 100.0),
        aiperf_line("b", 101.0),
        aiperf_line("c", 102.0, error={"code": 503, "type": "HTTPError", "message": "x"}),
        aiperf_line("d", 103.0, error={"code": None, "type": "ReadTimeout", "message": "x"}),
        aiperf_line("e", 104.0, metadata={"was_cancelled": True}),
    ]
    path = write_lines(tmp_path / "profile_export.jsonl", lines)
    write_lines(tmp_path / "accuracy_export.jsonl", [graded_line("a", True), graded_line("b", False)])
    (run,), served = read(path)
    assert (run.load, run.planned_source) == ("unknown", "issued")
    assert [(one.phase, one.status, one.accepted) for one in served] == [
        ("engine warm-up", "completed", None), ("measured", "completed", True),
        ("measured", "completed", False), ("measured", "rejected", None), ("measured", "failed", None),
        ("measured", "cancelled", None),
    ]  # fmt: skip
    one = served[1]
    assert (one.planned_us, one.dispatched_us) == (100_000_000, 100_010_000)
    assert (one.first_us, one.done_us, one.output_tokens) == (100_500_000, 102_500_000, 21)


def test_a_grade_without_a_request_and_a_strange_unit_are_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "profile_export.jsonl", [aiperf_line("a", 100.0)])
    write_lines(tmp_path / "accuracy_export.jsonl", [graded_line("a", True), graded_line("z", True)])
    with pytest.raises(OutcomesError, match="beside it grades 1 requests that it has not"):
        read(path)
    line = aiperf_line("a", 100.0)
    line["metrics"]["time_to_first_token"]["unit"] = "s"
    with pytest.raises(OutcomesError, match="the unit of time_to_first_token is 's', expected ms"):
        read(write_lines(tmp_path / "profile_export.jsonl", [line]))


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.jsonl"])
def test_a_file_of_no_known_format_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"a": 1}\n')
    with pytest.raises(OutcomesError, match=r"is of no format that is known; expected serving\.jsonl"):
        read(tmp_path / name)


def test_the_worked_example_can_be_written_as_own_lines(tmp_path: Path) -> None:
    _, served = read(served_file(tmp_path, eleven_lines()))
    assert [one.id for one in served] == list("abcdefghijk")
