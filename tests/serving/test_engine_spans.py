"""Scrapes cut to the intervals of runs, and gaps between tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.serving_files import POLICY, own_served, served_file

from kvtrace.serving.collect import Extras, collect_serving
from kvtrace.serving.contract import load_contract
from kvtrace.serving.goodput import useful_goodput
from kvtrace.serving.source import VariantFile
from kvtrace.serving.table import read_serving
from kvtrace.serving.text import goodput_text

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.serving.report import GoodputReport

EPOCH = 1_800_000_000.0
"""POLICY: 2 s of warm-up after the first arrival, then 10 s, then 5 s of drain."""


def pages(*scrapes: tuple[float, float, float]) -> str:
    """(seconds after the first arrival, preemptions so far, start of the process)."""
    return "".join(
        f"# scraped_at {EPOCH + at}\nprocess_start_time_seconds {started}\n"
        f'vllm:num_preemptions_total{{engine="0"}} {count}\nvllm:num_requests_running{{}} {abs(at)}\n'
        for at, count, started in scrapes
    )


def report(folder: Path, scrapes: str, begin_s: float = EPOCH, **fields: Any) -> GoodputReport:
    lines = [own_served(f"r{n}", begin_s + n, **fields) for n in range(15)]
    (folder / "s.prom").write_text(scrapes)
    (folder / "policy.toml").write_text(POLICY)
    extras = Extras(load="open", metrics=[VariantFile("v", folder / "s.prom")])
    collect_serving([VariantFile("v", served_file(folder, lines))], folder / "t", extras)
    return useful_goodput([read_serving(folder / "t")], load_contract(folder / "policy.toml"))


def test_scrapes_are_cut_to_the_interval_of_a_run_whose_clock_is_the_epoch(tmp_path: Path) -> None:
    # the interval is from 2 to 12: scrapes at 3 and 11 are in it, those at 1 and 13 are not
    found = report(tmp_path, pages((1, 1, 5), (3, 10, 5), (11, 14, 5), (13, 90, 5)))
    (variant,) = found.variants
    (span,) = variant.engine
    assert (variant.is_cut, variant.restarts) == (True, 0)
    assert (span.num_scrapes, span.grown["preemptions"], span.peaks["running"]) == (2, 4.0, 11.0)
    assert (span.begin_s, span.end_s) == (EPOCH + 3, EPOCH + 11)
    assert "within the runs' intervals, 2 scrapes: preemptions +4" in goodput_text(found)


def test_a_start_between_runs_is_no_restart_and_one_in_the_drain_is(tmp_path: Path) -> None:
    before = pages((-30, 7, 4), (3, 0, 5), (11, 2, 5))
    assert report(tmp_path, before).variants[0].restarts == 0
    in_drain = pages((3, 0, 5), (11, 2, 5), (16, 0, 6))
    assert report(tmp_path, in_drain).variants[0].restarts == 1


def test_a_clock_without_an_epoch_leaves_all_scrapes(tmp_path: Path) -> None:
    found = report(tmp_path, pages((1, 1, 5), (900, 3, 5)), begin_s=10.0).variants[0]
    assert (found.is_cut, found.engine[0].grown["preemptions"]) == (False, 2.0)


def test_gaps_between_tokens_are_told_only_where_the_file_has_their_times(tmp_path: Path) -> None:
    scrapes = pages((3, 0, 5))
    assert report(tmp_path, scrapes).runs[0].all.latencies.itl == ()
    lines = [
        own_served(
            f"r{n}", EPOCH + n, first_token_s=None, output_tokens=None,
            token_times_s=[EPOCH + n + 0.5 + 0.02 * k + (0.3 if k > 9 else 0) for k in range(11)],
        )
        for n in range(15)
    ]  # fmt: skip
    collect_serving([VariantFile("v", served_file(tmp_path, lines))], tmp_path / "t", Extras(load="open"))
    found = useful_goodput([read_serving(tmp_path / "t")], load_contract(tmp_path / "policy.toml"))
    # of ten requests in the interval ten gaps each: nine of 20 ms, one of 320 ms; p99 needs 500 of them
    assert [one.value_ms for one in found.runs[0].all.latencies.itl] == [20.0, 20.0, None]
    assert "between tokens, ms: p50 20, p90 20" in goodput_text(found)
