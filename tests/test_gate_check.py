from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fabricate_run import run_record, source_record
from gate_runs import CANDIDATES, HEADS, Traffic, gate_run

from kvtrace.errors import InputError, NoValidCandidateError
from kvtrace.gate.check import check
from kvtrace.gate.check_text import check_text
from kvtrace.gate.outcome import CheckOutcome, Verdict
from kvtrace.gate.policy import load_policy
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from pathlib import Path

HEAD = (0, 1, "v")


def policy(
    folder: Path,
    limits: str,
    *,
    requests: int = 10,
    segments: str = '[[segments]]\nname = "all"',
    top: str = "",
) -> Path:
    path = folder / "policy.toml"
    path.write_text(
        f'name = "p"\ndate = 2020-01-01\n{top}\n[limits]\n{limits}\n'
        f"[coverage]\nrequests = {requests}\ntokens = 10\n{segments}\n"
    )
    return path


def outcome(run: Path, policy_path: Path, candidate: str | None = None) -> CheckOutcome:
    return check(open_run(run), load_policy(policy_path), candidate)


def test_a_head_that_always_clips_breaches_though_the_others_never_do(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 30, clipped={HEAD: [10] * 30}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5"))
    assert found.verdict is Verdict.breached
    limit = found.segments[0].limits[0]
    assert (limit.num_breached, limit.num_heads) == (1, 4)
    assert limit.worst is not None
    assert (limit.worst.layer, limit.worst.kv_head, limit.worst.tensor) == HEAD
    assert (limit.worst.value, limit.worst.num_affected_requests) == (1.0, 30)


def test_enough_requests_without_an_event_are_within(tmp_path: Path) -> None:
    # Clopper–Pearson: no event in 400 requests bounds the fraction by 0.92 %.
    run = gate_run(tmp_path / "run", Traffic("chat", 400, positions=[0, 9]))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01\nvectors_out_of_range_frac = 0.01"))
    assert found.verdict is Verdict.within
    assert found.envelope == (
        "cal is within policy p (2020-01-01) in every protected segment: chat, prompts of 8 to 8 and outputs "
        "of 2 to 2 tokens, positions 0 to 9 (400 requests, 800 tokens), each head with at most 1 % of its "
        "vectors clipped, at most 1 % of its vectors out of range."
    )
    assert found.triggers == ()


def test_too_few_requests_without_an_event_say_how_many_it_takes(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 100))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason is not None
    assert "about 368 requests" in found.segments[0].reason  # log(0.025) / log(0.99)
    assert "No envelope" in found.envelope


def test_a_written_assumption_about_the_worst_request_makes_100_requests_enough(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 100))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01", top="worst_request_frac = 0.2"))
    assert found.verdict is Verdict.within


def test_an_event_that_the_sample_cannot_place_is_neither_within_nor_breached(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 30, clipped={HEAD: [1]}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.not_enough


def test_out_of_range_is_not_clipped(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 30, outside={HEAD: [10] * 30}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.2\nvectors_out_of_range_frac = 0.2"))
    clipped, outside = found.segments[0].limits
    assert (clipped.verdict, outside.verdict) == (Verdict.within, Verdict.breached)


def test_a_large_healthy_workload_does_not_hide_a_small_failing_one(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run", Traffic("chat", 300), Traffic("retrieval", 12, clipped={HEAD: [10] * 12})
    )
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.3"))
    assert [one.verdict for one in found.segments] == [Verdict.within, Verdict.breached]
    assert found.verdict is Verdict.breached
    assert found.envelope.startswith("cal is within policy p (2020-01-01) in 1 of 2 protected segments: chat")
    assert found.triggers == ("limit breached: all · retrieval: vectors_clipped_frac, 1 of 4 heads",)


def test_long_positions_decide_for_themselves(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 40, positions=[1, 2, 3, 4000], prompt_tokens=5000),
        Traffic("chat", 20, positions=[4001], prompt_tokens=5000, clipped={HEAD: [1] * 20}),
    )
    segments = '[[segments]]\nname = "all"\npositions = [0, 2048, 8192]'
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.1", segments=segments))
    assert [one.verdict for one in found.segments] == [Verdict.within, Verdict.breached]
    assert found.segments[1].seen_positions == (4000, 4001)


def test_an_edge_belongs_to_the_segment_that_it_begins(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 10, positions=[7, 8], prompt_tokens=100))
    segments = '[[segments]]\nname = "all"\npositions = [0, 8, 16]\nprompt_tokens = [0, 100, 101]'
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5", segments=segments))
    tokens = {(one.positions, one.prompt_tokens): one.num_tokens for one in found.segments}
    assert tokens == {
        ((0, 7), (0, 99)): 0,
        ((0, 7), (100, 100)): 10,
        ((8, 15), (0, 99)): 0,
        ((8, 15), (100, 100)): 10,
    }


def test_prompt_lengths_decide_for_themselves(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 40, prompt_tokens=20),
        Traffic("chat", 20, prompt_tokens=900, clipped={HEAD: [10] * 20}),
    )
    segments = '[[segments]]\nname = "all"\nprompt_tokens = [0, 100, 1000]'
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.1", segments=segments))
    assert [(one.verdict, one.num_requests) for one in found.segments] == [
        (Verdict.within, 40),
        (Verdict.breached, 20),
    ]


def test_too_few_requests_for_the_policy_are_not_within_whatever_the_estimate(tmp_path: Path) -> None:
    values = {"num_values": 100, "num_clipped": 0, "sum_sq_signal": 1.0, "sum_sq_error": 0.001}
    run = gate_run(tmp_path / "run", Traffic("chat", 9, values=values))
    found = outcome(run, policy(tmp_path, "clipped_frac = 0.1"))
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason == "9 requests, the policy asks for 10"


def test_an_estimate_beyond_its_limit_is_no_breach_on_thin_coverage(tmp_path: Path) -> None:
    values = {"num_values": 100, "num_clipped": 90}
    run = gate_run(tmp_path / "run", Traffic("chat", 9, values=values))
    found = outcome(run, policy(tmp_path, "clipped_frac = 0.1"))
    assert found.segments[0].limits[0].verdict is Verdict.breached
    assert found.verdict is Verdict.not_enough


def test_four_requests_that_always_clip_are_a_breach_on_any_coverage(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 4, clipped={HEAD: [10] * 4}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.breached
    worst = found.segments[0].limits[0].worst
    assert worst is not None
    assert worst.high is None
    assert worst.low == pytest.approx(0.025 ** (1 / 4))


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
        "out_of_range_frac": Verdict.breached,
        "clip_error_frac": Verdict.breached,
        "sqnr_db": Verdict.within,
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
    assert outcome(run, policy(tmp_path, "clip_error_frac = 0.1")).verdict is Verdict.not_enough


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


def test_an_unquantized_head_cannot_breach(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 20, clipped={HEAD: [10] * 20}), unquantized={"cal": [0]})
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.within
    assert found.segments[0].limits[0].num_heads == 0


def test_a_head_whose_rows_are_missing_is_not_enough_coverage(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 400, positions=[0]), without=[HEAD])
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason == "1 of 4 heads have no captured row here"


def test_a_workload_of_the_policy_that_was_not_captured_is_not_enough_coverage(tmp_path: Path) -> None:
    segments = '[[segments]]\nname = "tools"\nworkloads = ["tools"]'
    run = gate_run(tmp_path / "run", Traffic("chat", 400, positions=[0]))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01", segments=segments))
    assert found.verdict is Verdict.not_enough
    assert found.segments[0].reason == "no request of this segment was captured"
    assert any(trigger.startswith("traffic: workload chat, which the policy") for trigger in found.triggers)


def test_positions_beyond_the_policy_are_named_as_untested(tmp_path: Path) -> None:
    segments = '[[segments]]\nname = "short"\nworkloads = ["chat"]\npositions = [0, 8]'
    run = gate_run(tmp_path / "run", Traffic("chat", 400, positions=[0, 9]))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01", segments=segments))
    assert found.verdict is Verdict.within
    beyond = "workload chat beyond the policy's positions, phases or lengths"
    assert any(part.startswith(beyond) and "up to position 9" in part for part in found.not_tested)
    assert found.triggers[0].startswith(f"traffic: {beyond}")


def test_another_model_than_the_approved_one_fires_a_trigger(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 400, positions=[0]))
    segments = (
        '[[segments]]\nname = "all"\n[approved]\nengine_version = "vllm 0.31.0"\nweights_digest = "sha256:aa"'
    )
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01", segments=segments))
    assert found.triggers == (
        "weights_digest is not recorded in day, approved was sha256:aa",
        "engine_version is vllm 0.32.0 in day, approved was vllm 0.31.0",
    )


def test_strata_are_pooled_by_what_they_were_sampled_from(tmp_path: Path) -> None:
    # 20 requests with all 10 rows kept and none clipped; 20 kept 1 in 16, 5 of 10 rows clipped.
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 20),
        Traffic("chat", 20, clipped={HEAD: [5] * 20}, sampling_id=1),
        strides=(1, 16),
    )
    limit = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.1")).segments[0].limits[0]
    assert limit.worst is not None
    assert limit.worst.value == pytest.approx(16 * 100 / (16 * 200 + 200))


def test_nan_or_inf_breaches_whatever_the_limits(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 40, num_nonfinite=2))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.9"))
    assert found.verdict is Verdict.breached
    assert found.segments[0].num_nonfinite_vectors == 8  # 2 requests × 4 heads
    assert found.triggers == ("NaN or inf: all · chat: 8 vectors",)


def test_a_trace_without_the_candidate_counts_nowhere_and_is_named(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 40, clipped={HEAD: [10] * 40}),
        Traffic("chat", 40, source="bf16 night"),
        sources_of={"cal": ["day"]},
    )
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.2"))
    assert found.segments[0].num_requests == 40
    assert found.segments[0].limits[0].worst is not None
    assert found.segments[0].limits[0].worst.value == 1.0
    assert "trace bf16 night: the candidate does not exist there" in found.not_tested
    assert not any(trigger.startswith("traffic") for trigger in found.triggers)


def test_lost_rows_are_shown(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 20, num_dropped=3))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5"))
    assert found.segments[0].num_incomplete_requests == 20
    assert "20 of them incomplete" in check_text(found)


def test_a_policy_that_is_younger_than_the_run_says_so(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 20), record=run_record(created_at=1_500_000_000.0))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5"))
    assert found.policy.written_after_run
    assert "dated after the run" in check_text(found)


def test_the_policy_that_the_run_names_is_compared_by_hash(tmp_path: Path) -> None:
    path = policy(tmp_path, "vectors_clipped_frac = 0.5")
    same = gate_run(
        tmp_path / "a", Traffic("chat", 20), record=run_record(policy_sha256=load_policy(path).sha256)
    )
    other = gate_run(tmp_path / "b", Traffic("chat", 20), record=run_record(policy_sha256="0" * 64))
    assert outcome(same, path).policy.recorded_in_run is True
    assert outcome(other, path).policy.recorded_in_run is False
    assert "another policy" in check_text(outcome(other, path))


def test_what_the_engine_used_is_checked_unless_a_candidate_is_named(tmp_path: Path) -> None:
    effective = CANDIDATES[1] | {"candidate": "effective", "kind": "effective", "ordinal": 2}
    run = gate_run(tmp_path / "run", Traffic("chat", 20), candidates=[*CANDIDATES, effective])
    limits = policy(tmp_path, "vectors_clipped_frac = 0.5")
    assert outcome(run, limits).candidate == "effective"
    assert outcome(run, limits, "cal").candidate == "cal"


def test_several_candidates_and_none_named_is_refused_with_their_names(tmp_path: Path) -> None:
    other = CANDIDATES[1] | {"candidate": "other", "ordinal": 2}
    run = gate_run(tmp_path / "run", Traffic("chat", 20), candidates=[*CANDIDATES, other])
    limits = policy(tmp_path, "vectors_clipped_frac = 0.5")
    with pytest.raises(InputError, match="holds bf16, cal, other; say which"):
        outcome(run, limits)
    with pytest.raises(InputError, match="no candidate is called 'absent'"):
        outcome(run, limits, "absent")


def test_an_invalid_candidate_is_refused_with_its_reason(tmp_path: Path) -> None:
    broken = {
        "candidate": "broken",
        "ordinal": 2,
        "kind": "artifact",
        "status": "invalid",
        "reason": "k_scale of layer 0 is NaN",
        "hypothetical": True,
    }
    run = gate_run(tmp_path / "run", Traffic("chat", 20), candidates=[*CANDIDATES, broken])
    with pytest.raises(NoValidCandidateError, match="broken is invalid: k_scale of layer 0 is NaN"):
        outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5"), "broken")


def test_traces_of_different_models_fire_a_trigger(tmp_path: Path) -> None:
    other = source_record("night", attention_backends=("FLASHINFER",))
    record = run_record(source_record(attention_backends=("FLASH_ATTN",)), other)
    run = gate_run(tmp_path / "run", Traffic("chat", 20), record=record)
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5"))
    assert found.triggers == ("the traces differ in attention_backend: FLASHINFER, FLASH_ATTN",)


def test_hostile_workload_names_stay_plain_text(tmp_path: Path) -> None:
    names = ["'; DROP TABLE rows; --", "\x1b[31mred", "\u202egnp.exe", "<script>", "x" * 10_000]
    run = gate_run(tmp_path / "run", *(Traffic(name, 5, positions=[0]) for name in names))
    text = check_text(outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5")))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_triggers_of_the_calibration_that_fired_are_named(tmp_path: Path) -> None:
    findings = [
        {
            "source": "day",
            "candidate": "cal",
            "ordinal": number,
            "id": name,
            "severity": severity,
            "message": message,
        }
        for number, (name, severity, message) in enumerate(
            (
                ("stale-artifact", "error", "the traced model's weights differ"),
                ("outside-envelope", "note", "the mix of workloads differs a little"),
                ("outside-envelope", "warning", "workloads that were not calibrated on: chat"),
                ("kv-swapped", "error", "K and V are swapped"),
            )
        )
    ]
    run = gate_run(tmp_path / "run", Traffic("chat", 30), findings=findings)
    assert outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5")).triggers == (
        "calibration, in day: the traced model's weights differ",
        "calibration, in day: workloads that were not calibrated on: chat",
    )


def test_live_values_beyond_the_calibrated_maximum_fire_a_trigger_where_the_scale_does_not_cover_them(
    tmp_path: Path,
) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, values={"max_abs": 500.0}),
        calibrated_amax={(0, 0, "k"): 200.0, (0, 0, "v"): 250.0, (0, 1, "k"): 600.0},
    )
    (trigger,) = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5")).triggers
    assert trigger == (
        "activation drift: 2 of 3 heads reach beyond their calibrated maximum and the covered range, "
        "furthest layer 0 head 0 K: 2.5 × in chat"
    )
