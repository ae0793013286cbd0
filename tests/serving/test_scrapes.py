"""Scrapes of /metrics. `files/vllm_metrics_*.prom` are of a real vLLM 0.32 on a CPU, before and after ten
requests; buckets, help and Python's own metrics were left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.errors import OutcomesError
from kvtrace.serving.scrapes import Scrape, num_restarts, read_scrapes, spans

FILES = Path(__file__).parent / "files"
BEFORE, AFTER = (FILES / f"vllm_metrics_{name}.prom" for name in ("before", "after"))


def test_a_real_servers_scrapes_say_what_it_did_between_them() -> None:
    scrapes = [*read_scrapes(BEFORE), *read_scrapes(AFTER)]
    (span,) = spans(scrapes)
    # the benchmark between them: 10 requests, 347 tokens in, 147 out (vllm_bench_serve.json)
    assert span.counters["prompt_tokens"] == 347
    assert span.counters["generation_tokens"] == 147
    assert span.counters["ended: length"] == 10
    assert span.counters["preemptions"] == 0
    assert span.counters["rejections: max_num_queued_reqs"] == 0
    assert (span.cache_dtype, span.num_blocks, span.num_tokens) == ("auto", 364, 46_592)
    assert span.peaks["waiting: capacity"] == 0


def test_what_a_server_does_not_report_is_absent_and_not_zero() -> None:
    (scrape,) = read_scrapes(AFTER)
    assert "corrupted" not in scrape.counters
    assert "moved_bytes" not in scrape.counters


def page(**values: float) -> str:
    return "".join(f'vllm:{name}{{engine="0"}} {value}\n' for name, value in values.items())


def test_pages_in_one_file_are_told_apart_by_their_times(tmp_path: Path) -> None:
    pages = [f"# scraped_at {at}\n{page(num_preemptions_total=at)}" for at in (100.5, 105.0)]
    (tmp_path / "m").write_text("".join(pages))
    assert [(one.at_us, one.counters["preemptions"]) for one in read_scrapes(tmp_path / "m")] == [
        (100_500_000, 100.5), (105_000_000, 105.0),
    ]  # fmt: skip


def test_engines_are_summed_and_the_fullest_cache_counts(tmp_path: Path) -> None:
    lines = [
        'vllm:num_preemptions_total{engine="0"} 2',
        'vllm:num_preemptions_total{engine="1"} 3',
        'vllm:kv_cache_usage_perc{engine="0"} 0.25',
        'vllm:kv_cache_usage_perc{engine="1"} 0.75',
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4',
        'vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 5',
        'vllm:nixl_bytes_transferred_sum{engine="0"} 4096',
    ]
    (tmp_path / "m").write_text("\n".join(lines))
    (scrape,) = read_scrapes(tmp_path / "m")
    assert scrape.counters == {"preemptions": 5.0, "moved_bytes": 4096.0}
    assert scrape.gauges == {"usage": 0.75, "waiting: capacity": 9.0}


def test_nothing_is_subtracted_across_a_restart() -> None:
    def scrape(at: int, preemptions: float, started: int | None = None) -> Scrape:
        return Scrape(at_us=at, started_us=started, counters={"preemptions": preemptions})

    fell = spans([scrape(0, 5), scrape(1, 9), scrape(2, 1), scrape(3, 4)])
    assert [one.counters["preemptions"] for one in fell] == [4, 3]
    assert num_restarts(fell) == 1
    # the counter is higher than before, but another process counts
    other = spans([scrape(0, 5, 100), scrape(1, 9, 200), scrape(2, 12, 200)])
    assert [one.counters for one in other] == [{}, {"preemptions": 3}]
    assert spans([]) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no scrape"),
        ("<html>", "'<html>' is not a line of /metrics"),
        ("go_info 1\n", "has none of vLLM's metrics"),
        ('vllm:num_preemptions_total{engine="0"} x\n', "'x' is not a number"),
        ('vllm:num_preemptions_total{engine="0"} NaN\n', "'NaN' is not a finite number of 0 or more"),
        ("# scraped_at noon\nvllm:num_preemptions_total 1\n", "expected epoch seconds"),
        ("x" * 300_000, "a line is longer than 200,000 bytes"),
    ],
)
def test_a_page_that_is_no_vllms_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "m").write_text(content)
    with pytest.raises(OutcomesError) as error:
        list(read_scrapes(tmp_path / "m"))
    assert str(error.value).startswith(f"{tmp_path / 'm'}: ")
    assert reason in str(error.value)
