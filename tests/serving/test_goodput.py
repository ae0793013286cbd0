"""Useful goodput: a worked example number by number, and a naive loop over requests as an oracle."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.outcome_files import write_json
from support.serving_files import (
    POLICY,
    bench_result,
    eleven_lines,
    guidellm_benchmark,
    guidellm_file,
    own_served,
    served_file,
    sglang_result,
)

from kvtrace.errors import OutcomesError, PolicyError
from kvtrace.runs.manifest import ServingManifest
from kvtrace.serving.collect import Extras, collect_serving
from kvtrace.serving.contract import ClassLimits, Contract, load_contract
from kvtrace.serving.goodput import useful_goodput
from kvtrace.serving.judge import Unmeasured, judge
from kvtrace.serving.percentiles import percentiles
from kvtrace.serving.record import Served
from kvtrace.serving.source import VariantFile
from kvtrace.serving.spread import spread
from kvtrace.serving.table import read_serving
from kvtrace.serving.text import goodput_text

if TYPE_CHECKING:
    from kvtrace.serving.report import GoodputReport


def contract(folder: Path, text: str = POLICY) -> Contract:
    (folder / "policy.toml").write_text(text)
    return load_contract(folder / "policy.toml")


def report(
    folder: Path,
    *files: tuple[str, Path],
    policy: str = POLICY,
    baseline: str | None = None,
    extras: Extras | None = None,
) -> GoodputReport:
    sources = [VariantFile(*one) for one in files]
    table = folder / "t.serving"
    collect_serving(sources, table, Extras(load="open") if extras is None else extras)
    return useful_goodput([read_serving(table)], contract(folder, policy), baseline=baseline)


def test_the_worked_example_comes_out_by_hand(tmp_path: Path) -> None:
    (run,) = report(tmp_path, ("bf16", served_file(tmp_path, eleven_lines()))).runs
    (one,) = run.classes
    assert run.problems == ()
    assert (run.num_before, run.num_after) == (1, 1)  # a; and k, as the interval is half-open
    assert (one.offered, one.accepted, one.wrong, one.late) == (9, 4, 1, 1)
    assert (one.rejected, one.failed, one.unfinished, one.unjudged) == (1, 1, 1, 0)
    assert (one.goodput, one.accepted_frac, one.completed) == (0.4, 4 / 9, 6)
    assert one == run.all.model_copy(update={"name": "short"})
    # two GPUs at 3 an hour; i is not done by the deadline, so the drain is used up: 6 * 15 / 3600 / 4
    assert run.load_stopped
    assert run.drain_used_s == 5
    assert run.cost_per_accepted == pytest.approx(0.00625)


def test_the_tools_own_count_of_the_worked_example_is_explained(tmp_path: Path) -> None:
    (run,) = report(tmp_path, ("bf16", served_file(tmp_path, eleven_lines()))).runs
    assert run.tool is not None
    # a b c f h j k are good over 19 s, from -2 to 17; c is wrong, a and k lie outside
    assert (run.tool.good, run.tool.duration_s) == (7, 19)
    assert run.tool.per_second == pytest.approx(7 / 19)
    assert (run.tool.wrong, run.tool.outside, run.tool.late_by_plan, run.tool.unjudged) == (1, 2, 0, 0)


def test_load_that_goes_on_costs_the_interval_alone(tmp_path: Path) -> None:
    lines = [*eleven_lines(), *(own_served(f"x{n}", 10.5 + n) for n in range(4))]
    (run,) = report(tmp_path, ("bf16", served_file(tmp_path, lines))).runs
    # 5 in 5 s after the interval, 9 in its 10 s
    assert run.load_stopped is False
    assert run.cost_per_accepted == pytest.approx(6 * 10 / 3600 / 4)


def test_percentiles_of_the_worked_example_are_by_nearest_rank(tmp_path: Path) -> None:
    six = [500_000, 1_750_000, 2_500_000, 3_000_000, 3_500_000, 4_500_000]
    assert [one.value_ms for one in percentiles(six, 3, 0.95)] == [None, None, None]  # too few to tell
    # ten of each: the same ranks; 30 of 90 did not complete, so that the p90 of all is the deadline or more
    median, p90, p99 = percentiles(sorted(six * 10), 30, 0.95)
    assert (median.value_ms, p90.value_ms, p99.value_ms) == (2_500, 4_500, None)
    assert (median.is_censored, p90.is_censored) == (False, True)


def test_the_interval_of_a_percentile_is_that_of_order_statistics() -> None:
    # binomial (100, 0.5): its 2.5 % quantile is 40, its 97.5 % quantile 60; the 40th and 61st value
    found = percentiles([1000 * n for n in range(1, 101)], 0, 0.95)[0]
    assert (found.value_ms, found.low_ms, found.high_ms) == (50, 40, 61)


def test_a_run_is_the_observation_and_three_make_an_interval() -> None:
    found = spread([0.4, 0.5, 0.3], 0.95)
    assert found is not None
    assert found.low == pytest.approx(0.4 - 0.248, abs=5e-4)
    assert (found.median, found.least, found.most) == (0.4, 0.3, 0.5)
    two = spread([0.4, 0.5], 0.95)
    assert two is not None
    assert (two.low, two.high) == (None, None)
    gains = [fp8 - bf16 for fp8, bf16 in zip((52, 50, 51, 49, 53), (40, 42, 41, 39, 43), strict=True)]
    paired = spread([gain / 100 for gain in gains], 0.95)
    assert paired is not None
    assert paired.high is not None
    assert paired.mean == pytest.approx(0.10)
    assert paired.high - paired.mean == pytest.approx(0.0176, abs=5e-5)


LIMITS = ClassLimits(ttft_ms=2000, tpot_ms=100, e2e_ms=6000)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "accepted"),
        ({"first_us": 2_000_000}, "accepted"),
        ({"first_us": 2_000_001, "done_us": 4_000_001}, "late"),
        ({"done_us": 2_500_001}, "late"),  # 2.000001 s for 20 tokens
        ({"done_us": 6_000_000, "output_tokens": 56}, "accepted"),
        ({"done_us": 6_000_001, "output_tokens": 57}, "late"),
        ({"last_us": 2_000_000, "done_us": 2_900_000}, "accepted"),  # the last token came before the end
        ({"accepted": False, "first_us": 3_000_000}, "wrong"),
        ({"accepted": None}, "unjudged"),
        ({"done_us": 15_000_000}, "late"),
        ({"done_us": 15_000_001, "accepted": False}, "unfinished"),
        ({"status": "rejected", "done_us": None}, "rejected"),
        ({"status": "cancelled"}, "failed"),
        ({"output_tokens": 1, "done_us": 5_000_000}, "accepted"),  # TPOT of one token is 0
    ],
)
def test_each_request_has_one_outcome_and_limits_are_met_to_the_microsecond(
    change: dict[str, Any], outcome: str
) -> None:
    fields: dict[str, Any] = {
        "planned_us": 0, "dispatched_us": 0, "first_us": 500_000, "done_us": 2_500_000, "output_tokens": 21,
        "accepted": True, "status": "completed",
    }  # fmt: skip
    assert judge(Served("r", **(fields | change)), LIMITS, 15_000_000) == outcome


def test_a_limit_without_its_time_is_not_judged() -> None:
    one = Served("r", "completed", planned_us=0, done_us=1, output_tokens=3, accepted=True)
    with pytest.raises(Unmeasured, match="the time of the first token"):
        judge(one, LIMITS, 10)
    assert judge(one, ClassLimits(e2e_ms=5), 10) == "accepted"


TENTHS = st.integers(-30, 200).map(lambda n: n / 10)
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "planned": TENTHS,
            "first": st.integers(0, 40),
            "rest": st.integers(0, 120),
            "tokens": st.integers(1, 40),
            "status": st.sampled_from(["completed", "completed", "completed", "rejected", "failed"]),
            "accepted": st.sampled_from([True, True, False]),
            "prompt": st.sampled_from([10, 3000]),
        }
    ),
    min_size=1,
    max_size=40,
)
TWO_CLASSES = POLICY.replace("warmup_s = 2", "warmup_s = 0") + (
    "[serving.classes.long]\nprompt_tokens = [2048, 4096]\nttft_ms = 3000\n"
)


def naive(requests: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Every request by itself, in exact seconds."""
    counted: dict[str, dict[str, int]] = {"short": {}, "long": {}}
    start = min(Fraction(str(one["planned"])) for one in requests)
    for one in requests:
        planned = Fraction(str(one["planned"]))
        first = planned + Fraction(one["first"], 10)
        done = first + Fraction(one["rest"], 10)
        if not start <= planned < start + 10:
            continue
        late = first - planned > (2 if one["prompt"] == 10 else 3)
        if one["prompt"] == 10:
            late = late or done - planned > 6
            late = late or (one["tokens"] > 1 and (done - first) / (one["tokens"] - 1) > Fraction(1, 10))
        if one["status"] != "completed":
            kind = one["status"]
        elif done > start + 15:
            kind = "unfinished"
        elif not one["accepted"]:
            kind = "wrong"
        else:
            kind = "late" if late else "accepted"
        of_class = counted["short" if one["prompt"] == 10 else "long"]
        of_class[kind] = of_class.get(kind, 0) + 1
    return counted


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_counts_are_those_of_a_naive_loop(requests: list[dict[str, Any]]) -> None:
    lines = [
        own_served(
            f"r{number}", one["planned"], dispatched_s=None, status=one["status"], accepted=one["accepted"],
            first_token_s=round(one["planned"] + one["first"] / 10, 1),
            finished_s=round(one["planned"] + one["first"] / 10 + one["rest"] / 10, 1),
            output_tokens=one["tokens"], prompt_tokens=one["prompt"],
        )
        for number, one in enumerate(requests)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (run,) = report(folder, ("bf16", served_file(folder, lines)), policy=TWO_CLASSES).runs
    kinds = ("accepted", "late", "wrong", "rejected", "failed", "unfinished")
    found = {one.name: {kind: n for kind in kinds if (n := getattr(one, kind))} for one in run.classes}
    assert found == naive(requests)


def test_unjudged_answers_make_goodput_a_range(tmp_path: Path) -> None:
    lines = eleven_lines()
    for line in lines:
        if line["id"] in ("b", "d"):  # in time, and late
            line["accepted"] = None
    (run,) = report(tmp_path, ("bf16", served_file(tmp_path, lines))).runs
    assert (run.all.accepted, run.all.unjudged, run.all.late) == (3, 2, 0)
    assert (run.all.goodput, run.all.goodput_most) == (0.3, 0.4)
    assert [note.id for note in run.notes] == ["load-stopped", "unjudged"]


def problems(folder: Path, file: Path, **options: Any) -> list[str]:
    (run,) = report(folder, ("bf16", file), **options).runs
    assert all(one.goodput is None for one in (*run.classes, run.all))
    assert run.cost_per_accepted is None
    return [problem.id for problem in run.problems]


def test_what_cannot_support_a_claim_has_no_goodput(tmp_path: Path) -> None:
    nothing = Extras()
    own = served_file(tmp_path, eleven_lines())
    assert problems(tmp_path, own, extras=nothing) == ["load-not-said"]
    assert problems(tmp_path, own, extras=Extras(load="closed")) == ["closed-loop"]
    assert problems(tmp_path, own, policy=POLICY.replace("[0, 2048]", "[200, 300]")) == ["no-class"]
    assert problems(tmp_path, own, policy=POLICY.replace("interval_s = 10", "interval_s = 30")) == [
        "interval-not-filled"
    ]
    late = [line | {"dispatched_s": line["planned_s"] + 0.3} for line in eleven_lines()]
    for line in late:
        if line["first_token_s"] is not None:
            line["first_token_s"] = max(line["first_token_s"], line["dispatched_s"])
            line["finished_s"] = line["finished_s"] and max(line["finished_s"], line["first_token_s"])
    assert problems(tmp_path, served_file(tmp_path, late, "late.jsonl")) == ["generator-late"]
    no_first = [line | {"first_token_s": None} for line in eleven_lines()]
    assert problems(tmp_path, served_file(tmp_path, no_first, "f.jsonl")) == ["time-missing"]
    sglang = write_json(tmp_path / "s.json", sglang_result())
    assert problems(tmp_path, sglang, extras=nothing) == ["refused"]
    sampled = write_json(tmp_path / "g.json", guidellm_file(guidellm_benchmark(sample_size=9)))
    assert problems(tmp_path, sampled, extras=nothing) == ["refused"]
    burst = write_json(tmp_path / "b.json", bench_result(request_rate="inf"))
    assert problems(tmp_path, burst, extras=nothing) == ["burst", "interval-not-filled"]


def test_latencies_of_a_file_without_arrivals_are_from_sending(tmp_path: Path) -> None:
    result = sglang_result(
        input_lens=[100] * 20, output_lens=[3] * 20, ttfts=[n / 10 for n in range(20)],
        itls=[[0.25, 0.5]] * 20, errors=[""] * 20,
    )  # fmt: skip
    (run,) = report(tmp_path, ("x", write_json(tmp_path / "s.json", result)), extras=Extras()).runs
    assert run.latency_clock == "dispatch"
    assert run.all.latencies.ttft[0].value_ms == 900  # the tenth of twenty
    assert run.all.latencies.e2e == ()
    assert "latencies from sending, since no arrival is known" in goodput_text(
        report(tmp_path, ("x", tmp_path / "s.json"), extras=Extras())
    )


def variant_lines(slow: set[str], tokens: int = 21) -> list[dict[str, Any]]:
    """Ten requests a second apart, those of `slow` 3 s late."""
    return [
        own_served(
            f"r{n}", n, output_tokens=tokens,
            **({"first_token_s": n + 3.0, "finished_s": n + 3.5} if f"r{n}" in slow else {}),
        )
        for n in range(10)
    ]  # fmt: skip


def test_variants_are_compared_run_by_run(tmp_path: Path) -> None:
    policy = POLICY.replace("warmup_s = 2", "warmup_s = 0").replace("tpot_ms = 100", "tpot_ms = 200")
    files = [
        ("bf16", served_file(tmp_path, variant_lines({f"r{n}" for n in range(slow)}), f"b{run}.jsonl"))
        for run, slow in enumerate((4, 5, 3))
    ] + [
        ("fp8", served_file(tmp_path, variant_lines({f"r{n}" for n in range(slow)}, 20), f"f{run}.jsonl"))
        for run, slow in enumerate((3, 4, 2))
    ]
    found = report(tmp_path, *files, policy=policy, baseline="bf16")
    (pair,) = found.pairs
    assert pair.num_pairs == 3
    assert pair.all.difference is not None
    # 0.6 0.5 0.7 and 0.7 0.6 0.8: each pair differs by 0.1
    assert pair.all.difference.mean == pytest.approx(0.1)
    assert pair.all.difference.low == pytest.approx(0.1)
    assert pair.all.baseline == pytest.approx(0.6)
    assert pair.output_tokens is not None
    assert (pair.output_tokens.num_requests, pair.output_tokens.mean) == (30, -1)
    text = goodput_text(found)
    assert "fp8 less bf16: 3 pairs of runs" in text
    assert "output lengths: -1 tokens (-1 to -1) over 30 requests" in text
    with pytest.raises(OutcomesError, match="expected the baseline bf16-a; --baseline names another"):
        report(tmp_path, *files, policy=policy, baseline="bf16-a")


def test_the_envelope_tells_the_highest_load_that_keeps_the_share(tmp_path: Path) -> None:
    def result(rate: float, ttft: float) -> dict[str, Any]:
        num = 100
        return bench_result(
            request_rate=rate, start_times=[n / rate for n in range(num)], queue_times=[0.0] * num,
            ttfts=[ttft] * num, latencies=[ttft] * num, input_lens=[10] * num, output_lens=[1] * num,
            errors=[""] * num, request_id_prefix=None,
        )  # fmt: skip

    policy = (
        POLICY.replace("warmup_s = 2", "min_accepted_frac = 0.9")
        .replace("interval_s = 10", "interval_s = 5")
        .replace("tpot_ms = 100\n", "")
    )
    files = [
        ("bf16", write_json(tmp_path / f"{rate}.json", result(rate, ttft)))
        for rate, ttft in ((10.0, 0.5), (20.0, 2.5))
    ]
    extras = Extras(manifests={"bf16": ServingManifest(effective_args={"max_num_seqs": 8})})
    found = report(tmp_path, *files, policy=policy, extras=extras)
    # nobody judged the answers: what is in time could be right, and nothing is accepted
    assert [point.goodput for point in found.envelope] == [0, 0]
    assert [point.rate for point in found.envelope] == [10, 20]
    assert [point.admission_limit for point in found.envelope] == [8, 8]
    assert [point.reaches for point in found.envelope] == [False, False]
    assert [run.all.goodput_most for run in found.runs] == [10, 0]


def test_a_class_nobody_asked_is_not_measured(tmp_path: Path) -> None:
    found = report(tmp_path, ("bf16", served_file(tmp_path, eleven_lines())), policy=TWO_CLASSES.replace(
        "warmup_s = 0", "warmup_s = 2"
    ))  # fmt: skip
    (run,) = found.runs
    assert [(one.name, one.offered, one.goodput) for one in run.classes] == [
        ("short", 9, 0.4), ("long", 0, None),
    ]  # fmt: skip
    assert found.variants[0].classes[1].goodput is None
    assert "long: not measured: no request" in goodput_text(found)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("interval_s = 10", "", "serving.interval_s: missing"),
        (
            "interval_s = 10",
            "interval_s = 0",
            "serving.interval_s: Input should be greater than or",
        ),
        ("drain_s", "drains", "serving.drains: no such key; expected one of classes, drain_s"),
        ("ttft_ms", "ttfb_ms", "serving.classes.short.ttfb_ms: no such key; expected one of e2e_ms"),
        ("[0, 2048]", "[5, 5]", "prompt_tokens is expected to rise"),
        ("per_hour = 6.0", "per_hour = -1", "cost.per_hour"),
        ("date = 2026-11-30", "date = 5 of May", "not TOML"),
        ("ttft_ms = 2000\ntpot_ms = 100\ne2e_ms = 6000", "", "expected at least one of ttft_ms"),
        (
            "[cost]",
            "[serving.classes.other]\nprompt_tokens = [2000, 3000]\nttft_ms = 1\n[cost]",
            "classes overlap in prompt_tokens",
        ),
    ],
)
def test_a_contract_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, before: str, after: str, reason: str
) -> None:
    with pytest.raises(PolicyError) as error:
        contract(tmp_path, POLICY.replace(before, after))
    assert str(error.value).startswith(f"{tmp_path / 'policy.toml'}: ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
