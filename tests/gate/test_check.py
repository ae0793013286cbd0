from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fabricate_run import run_record, source_record
from support.gate_checks import outcome, policy
from support.gate_runs import CANDIDATES, Traffic, gate_run

from kvtrace.errors import InputError, NoValidCandidateError
from kvtrace.gate.check_text import check_text
from kvtrace.gate.outcome import Verdict
from kvtrace.gate.policy import load_policy

if TYPE_CHECKING:
    from pathlib import Path

HEAD = (0, 1, "v")


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


def test_where_there_are_that_many_requests_their_number_is_not_asked_for(tmp_path: Path) -> None:
    # 36 of 400 requests clip one vector in 10 of a head: 0.9 %, an interval beyond 1 %. At most 1 % without
    # an event takes log(0.025) / log(0.99) = 368 requests, and 0.6 % takes 613.
    run = gate_run(tmp_path / "run", Traffic("chat", 400, clipped={HEAD: [1] * 36}))
    more = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.006")).segments[0].limits[0]
    assert str(more.reason).endswith("; a head without one event takes about 613 requests to be within")
    enough = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01")).segments[0].limits[0]
    assert enough.reason == "1 head: the interval reaches beyond the limit"


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


def test_four_requests_that_always_clip_are_a_breach_on_any_coverage(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 4, clipped={HEAD: [10] * 4}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.breached
    worst = found.segments[0].limits[0].worst
    assert worst is not None
    assert worst.high is None
    assert worst.low == pytest.approx(0.025 ** (1 / 4))


def test_an_unquantized_head_cannot_breach(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 20, clipped={HEAD: [10] * 20}), unquantized={"cal": [0]})
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01"))
    assert found.verdict is Verdict.within
    assert found.segments[0].limits[0].num_heads == 0


def test_a_candidate_that_quantizes_nothing_is_within_and_says_why(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 20, clipped={HEAD: [10] * 20}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.01\nsqnr_db = 90"), "bf16")
    assert found.verdict is Verdict.within
    assert found.envelope == (
        "bf16 is within policy p (2020-01-01) in every protected segment: chat, prompts of 8 to 8 and "
        "outputs of 2 to 2 tokens, positions 0 to 9 (20 requests, 200 tokens), no head quantized."
    )
    assert "vectors_clipped_frac: no head is quantized" in check_text(found)


def test_a_vector_without_a_finite_value_is_no_trial(tmp_path: Path) -> None:
    # Of 30 requests 20 hold nothing but NaN; in the other 10 every vector clips.
    run = gate_run(tmp_path / "run", Traffic("chat", 30, num_without_finite=20, clipped={HEAD: [10] * 30}))
    found = outcome(run, policy(tmp_path, "vectors_clipped_frac = 0.5", requests=11))
    limit = found.segments[0].limits[0]
    assert limit.worst is not None
    assert (limit.worst.value, limit.worst.num_affected_requests, limit.worst.num_requests) == (1.0, 10, 10)
    assert found.segments[0].num_nonfinite_vectors == 20 * 10 * 4
    assert found.verdict is Verdict.breached


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
    assert "20 of them not captured in full" in check_text(found)


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
