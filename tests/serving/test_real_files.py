"""Files that the tools wrote: GuideLLM 0.8.1 against a vLLM 0.32 server, and that server's /metrics.

One server (SmolLM2-135M, BF16 cache, CPU) on a machine that was far too busy: an open load of 1 a second
for 25 s, of which none ended. `guidellm_overloaded.json` keeps 8 of its 47 requests, without prompts and
without metrics of other modes. `vllm_metrics_restart.prom` has five of 112 scrapes, three before the server
was started anew and two after, and of each the metrics that are read.
"""

from __future__ import annotations

from pathlib import Path

from support.serving_files import POLICY

from kvtrace.serving.collect import Extras, collect_serving
from kvtrace.serving.contract import load_contract
from kvtrace.serving.goodput import useful_goodput
from kvtrace.serving.scrapes import num_restarts, read_scrapes, spans
from kvtrace.serving.source import VariantFile
from kvtrace.serving.table import read_serving

FILES = Path(__file__).parent / "files"
OVERLOADED, RESTARTED = FILES / "guidellm_overloaded.json", FILES / "vllm_metrics_restart.prom"


def test_requests_that_guidellm_cut_off_stay_in_the_denominator(tmp_path: Path) -> None:
    """GuideLLM itself lists no successful and no errored request here, so it has nothing to rate."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.replace("interval_s = 10", "interval_s = 22"))
    collect_serving([VariantFile("bf16", OVERLOADED)], tmp_path / "t", Extras())
    (run,) = useful_goodput([read_serving(tmp_path / "t")], load_contract(policy)).runs
    assert (run.format, run.load, run.rate, run.latency_clock) == ("guidellm", "open", 1.0, "planned")
    assert run.problems == ()
    # the first arrival is 2 s of warm-up before the interval, the last of eight 24.5 s after it
    assert (run.num_before, run.num_after) == (1, 1)
    assert (run.all.offered, run.all.failed + run.all.unfinished, run.all.accepted) == (6, 6, 0)
    assert run.all.goodput == 0.0  # measured: none of six was answered


def test_a_request_that_was_cut_off_keeps_the_times_that_it_has(tmp_path: Path) -> None:
    collect_serving([VariantFile("bf16", OVERLOADED)], tmp_path / "t", Extras())
    _, rows = next(read_serving(tmp_path / "t").each_run())
    first = next(rows)
    # targeted_start 1796081554.7945733, request_start …4.8014576, first_token_iteration …61.9443517
    assert (first.planned_us, first.dispatched_us) == (1_796_081_554_794_573, 1_796_081_554_801_458)
    assert (first.first_us, first.done_us, first.status) == (1_796_081_561_944_352, None, "cancelled")
    assert (first.id, first.prompt_tokens, first.output_tokens) == ("cmpl-b147941f40aee0ae", 48, 1)


def test_a_real_restart_cuts_the_scrapes() -> None:
    before, after = spans(read_scrapes(RESTARTED))
    assert num_restarts([before, after]) == 1
    assert (before.num_scrapes, after.num_scrapes) == (3, 2)
    # one request was scheduled before the start, none after it: 1 - 0, and never 0 - 1
    assert (before.counters["prompt_tokens"], before.counters["generation_tokens"]) == (48.0, 1.0)
    assert after.counters["generation_tokens"] == 0.0
    assert {(one.cache_dtype, one.num_blocks, one.num_tokens) for one in (before, after)} == {
        ("auto", 1456, 46_592)
    }
