"""Limits on ratios of values: by intervals over request groups, else by estimates, which alone tell less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.gate_checks import outcome, policy
from support.gate_runs import CANDIDATES, HEADS, ONLINE, Traffic, gate_run

from kvtrace.gate.check_text import check_text
from kvtrace.gate.outcome import Verdict

if TYPE_CHECKING:
    from pathlib import Path


def test_too_few_requests_for_the_policy_are_not_within_whatever_the_estimate(tmp_path: Path) -> None:
    values = {"num_values": 100, "num_clipped": 0, "sum_sq_signal": 1.0, "sum_sq_error": 0.001}
    run = gate_run(tmp_path / "run", Traffic("chat", 9, values=values))
    found = outcome(run, policy(tmp_path, "clipped_frac = 0.1"))
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason == "9 requests, the policy asks for 10"


@pytest.mark.parametrize(("num_requests", "because"), [(9, "9 requests, the policy asks for 10"), (40, None)])
def test_an_estimate_beyond_its_limit_is_no_breach_on_any_coverage(
    tmp_path: Path, num_requests: int, because: str | None
) -> None:
    values = {"num_values": 100, "num_clipped": 90}
    run = gate_run(tmp_path / "run", Traffic("chat", num_requests, values=values))
    found = outcome(run, policy(tmp_path, "clipped_frac = 0.1"))
    (segment,) = found.segments
    assert (segment.limits[0].verdict, segment.limits[0].num_untold) == (Verdict.not_enough, 4)
    assert found.verdict is Verdict.not_enough
    assert segment.reason == (because or segment.limits[0].reason)
    assert "kvtrace replay --intervals tells" in str(segment.limits[0].reason)
    assert not found.triggers
    text = " ".join(check_text(found).split())
    assert "clipped_frac at most 10 %: not enough coverage (4 of 4 heads untold)" in text
    assert (
        "A limit without an interval is never breached: its estimate is within it, or it is untold." in text
    )


def test_value_level_limits_use_the_sums_and_say_that_they_are_estimates(tmp_path: Path) -> None:
    values = {
        "num_values": 1000,
        "num_clipped": 20,
        "num_out_of_range": 40,
        "sum_sq_signal": 1000.0,
        "sum_sq_error": 1.0,
        "sum_sq_clip_error": 0.25,
    }
    run = gate_run(tmp_path / "run", Traffic("chat", 20, values=values))
    limits = "clipped_frac = 0.02\nout_of_range_frac = 0.03\nclip_error_frac = 0.2\nsqnr_db = 30.0"
    found = outcome(run, policy(tmp_path, limits))
    by_name = {one.limit: one for one in found.segments[0].limits}
    worst = {name: one.worst.value for name, one in by_name.items() if one.worst}
    assert worst == pytest.approx(
        {"clipped_frac": 0.02, "out_of_range_frac": 0.04, "clip_error_frac": 0.25, "sqnr_db": 30.0}
    )
    assert {name: one.verdict for name, one in by_name.items()} == {
        "clipped_frac": Verdict.within,
        "out_of_range_frac": Verdict.not_enough,
        "clip_error_frac": Verdict.not_enough,
        "sqnr_db": Verdict.within,
    }
    assert {name: one.num_untold for name, one in by_name.items()} == {
        "clipped_frac": 0,
        "out_of_range_frac": 4,
        "clip_error_frac": 4,
        "sqnr_db": 0,
    }
    assert {one.basis for one in by_name.values()} == {
        "estimate; the run holds no sums by which an interval could be made"
    }
    assert not any(one.has_interval for one in by_name.values())


def groups_of(clip_error: float, *, num_groups: int = 16, spread: float = 0.0) -> list[dict[str, object]]:
    """Sums of every head: the squared error is 1 in a group, and `clip_error` of it clips, more or less."""
    return [
        {
            "source": "day",
            "candidate": "cal",
            "layer": layer,
            "kv_head": kv_head,
            "tensor": tensor,
            "workload": "chat",
            "phase": "prefill",
            "request_group": group,
            "num_values": 100,
            "num_clipped": 1,
            "sum_sq_signal": 1000.0,
            "sum_sq_error": 1.0,
            "sum_sq_clip_error": clip_error * (1 + (spread if group % 2 else -spread)),
        }
        for layer, kv_head, tensor in HEADS
        for group in range(num_groups)
    ]


def with_groups(folder: Path, groups: list[dict[str, object]]) -> Path:
    names = ("num_values", "num_clipped", "sum_sq_signal", "sum_sq_error", "sum_sq_clip_error")
    mine = [one for one in groups if (one["layer"], one["kv_head"], one["tensor"]) == HEADS[0]]
    values = {name: sum(one[name] for one in mine) for name in names}  # type: ignore[misc]
    return gate_run(folder / "run", Traffic("chat", 30, values=values), groups=groups)


@pytest.mark.parametrize(
    ("clip_error", "spread", "verdict", "num_untold"),
    [
        (0.05, 0.0, Verdict.within, 0),
        (0.20, 0.0, Verdict.breached, 0),
        (0.05, 0.9, Verdict.within, 0),  # half the groups 0.005, half 0.095: 0.03 to 0.09
        (0.09, 0.9, Verdict.not_enough, 4),  # estimates alone would call it within
        (0.12, 0.9, Verdict.not_enough, 4),  # and this one breached
    ],
)
def test_with_request_groups_a_limit_on_clip_error_is_judged_by_its_interval(
    tmp_path: Path, clip_error: float, spread: float, verdict: Verdict, num_untold: int
) -> None:
    run = with_groups(tmp_path, groups_of(clip_error, spread=spread))
    found = outcome(run, policy(tmp_path, "clip_error_frac = 0.1"))
    (limit,) = found.segments[0].limits
    assert (found.verdict, limit.num_untold, limit.has_interval) == (verdict, num_untold, True)
    assert limit.worst is not None
    assert limit.worst.low is not None
    assert limit.worst.high is not None
    assert limit.worst.low <= clip_error <= limit.worst.high
    assert limit.worst.num_groups == 16
    assert ("too few requests to tell" in str(limit.reason)) == (verdict is Verdict.not_enough)


def test_an_sqnr_at_its_minimum_by_a_hair_is_not_called_within(tmp_path: Path) -> None:
    groups = groups_of(0.0)
    for one in groups:
        one["sum_sq_signal"] = 1000.0 * (1.5 if int(str(one["request_group"])) % 2 else 0.51)
    run = with_groups(tmp_path, groups)  # 30.02 dB, give or take
    found = outcome(run, policy(tmp_path, "sqnr_db = 30"))
    assert found.verdict is Verdict.not_enough
    assert outcome(run, policy(tmp_path, "sqnr_db = 25")).verdict is Verdict.within
    assert outcome(run, policy(tmp_path, "sqnr_db = 35")).verdict is Verdict.breached


def test_heads_that_hardly_clip_are_within_by_their_estimate_and_counted_as_such(tmp_path: Path) -> None:
    groups = groups_of(0.0)
    for one in groups[:2]:
        one["sum_sq_clip_error"] = 0.1
    run = with_groups(tmp_path, groups)
    found = outcome(run, policy(tmp_path, "clip_error_frac = 0.1"))
    (limit,) = found.segments[0].limits
    assert (found.verdict, limit.num_estimated) == (Verdict.within, 4)
    assert "from clipping (estimated in 4 heads)" in found.envelope
    assert "4 judged by the estimate" in " ".join(check_text(found).split())


def test_seven_request_groups_are_too_few_to_tell_whatever_the_estimate(tmp_path: Path) -> None:
    run = with_groups(tmp_path, groups_of(0.01, num_groups=7))
    found = outcome(run, policy(tmp_path, "clip_error_frac = 0.1"))
    assert found.verdict is Verdict.not_enough
    # Untold, so judged by nothing.
    text = " ".join(check_text(found).split())
    assert "not enough coverage (4 of 4 heads untold; 4 without an interval)" in text
    assert "judged by the estimate" not in text


def test_a_segment_of_some_positions_has_estimates_alone(tmp_path: Path) -> None:
    run = with_groups(tmp_path, groups_of(0.09, spread=0.9))
    segments = '[[segments]]\nname = "start"\npositions = [0, 16]'
    found = outcome(run, policy(tmp_path, "clip_error_frac = 0.1", segments=segments))
    (limit,) = found.segments[0].limits
    assert (found.verdict, limit.has_interval) == (Verdict.within, False)


def test_a_head_without_error_is_within_any_sqnr(tmp_path: Path) -> None:
    values = {"num_values": 10, "sum_sq_signal": 1.0, "sum_sq_error": 0.0}
    run = gate_run(tmp_path / "run", Traffic("chat", 20, values=values))
    found = outcome(run, policy(tmp_path, "sqnr_db = 60.0\nclip_error_frac = 0.0"))
    assert found.verdict is Verdict.within
    assert '"value": null' in found.model_dump_json(indent=1)


def online_run(folder: Path, num_requests: int, **sums: float) -> Path:
    values = {"num_values": 100, "sum_sq_signal": 1e4, "sum_sq_error": 1.0} | sums
    return gate_run(
        folder / "run", Traffic("chat", num_requests, values=values), candidates=[*CANDIDATES, ONLINE]
    )


@pytest.mark.parametrize(
    ("sqnr_db", "verdict", "num_breached"), [(39.0, Verdict.within, 0), (41.0, Verdict.breached, 4)]
)
def test_under_a_scale_for_every_vector_the_estimate_of_values_decides(
    tmp_path: Path, sqnr_db: float, verdict: Verdict, num_breached: int
) -> None:
    run = online_run(tmp_path, 20)  # 10·log10(1e4 / 1) = 40 dB
    found = outcome(run, policy(tmp_path, f"sqnr_db = {sqnr_db}"), ONLINE["candidate"])
    (limit,) = found.segments[0].limits
    assert (found.verdict, limit.num_heads, limit.num_breached) == (verdict, 4, num_breached)
    assert limit.basis.startswith("estimate, which decides alone")
    assert not limit.has_interval
    text = " ".join(check_text(found).split())
    assert "but of values under a cache format by the estimate alone" in text
    assert "never breached" not in text


def test_on_thin_coverage_an_estimate_does_not_breach_under_a_scale_for_every_vector_either(
    tmp_path: Path,
) -> None:
    run = online_run(tmp_path, 9)
    found = outcome(run, policy(tmp_path, "sqnr_db = 41"), ONLINE["candidate"])
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason == "9 requests, the policy asks for 10"


def test_under_a_scale_for_every_vector_it_is_known_that_none_leaves_the_range(tmp_path: Path) -> None:
    # 20 requests without an event would bound the fraction by 17 % only, if it were estimated.
    run = online_run(tmp_path, 20)
    limits = "vectors_clipped_frac = 0.001\nvectors_out_of_range_frac = 0.001"
    found = outcome(run, policy(tmp_path, limits), ONLINE["candidate"])
    assert found.verdict is Verdict.within
    assert {limit.basis for limit in found.segments[0].limits} == {
        "known: every vector gets a scale that covers it"
    }
    assert [limit.num_heads for limit in found.segments[0].limits] == [4, 4]


def test_heads_without_one_finite_value_cannot_be_told_to_keep_a_ratio(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 20, values={"num_values": 0}))
    found = outcome(run, policy(tmp_path, "clipped_frac = 0.1"))
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason == "4 heads without a finite value"
