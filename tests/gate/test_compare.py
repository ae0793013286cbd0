from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from support.fabricate_run import run_record, source_record
from support.gate_runs import CANDIDATES, CLIPPED, HEADS, ONLINE, OUT_OF_RANGE, Traffic, gate_run

from kvtrace.errors import ComparisonError
from kvtrace.gate.compare import compare
from kvtrace.gate.compare_text import comparison_text
from kvtrace.gate.comparison import Decision, Role
from kvtrace.gate.evidence import nested_tensors
from kvtrace.gate.policy import load_policy
from kvtrace.query import connect_with_views
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.gate.comparison import Comparison, DecisionRow

HEAD, OTHER = (0, 1, "v"), (0, 0, "v")
BF16, CAL = CANDIDATES
UNIT = CAL | {"candidate": "unit", "kind": "unit", "granularity": "tensor", "ordinal": 3}
BROKEN = {
    "candidate": "broken",
    "ordinal": 4,
    "kind": "artifact",
    "status": "invalid",
    "reason": "k_scale of layer 3 is NaN",
    "hypothetical": True,
}
WIDE = (CLIPPED + 1, CLIPPED + 1)


def table(
    *runs: Path,
    policy: Path | None = None,
    allow: tuple[str, ...] = (),
    baseline: str | None = None,
) -> Comparison:
    limits = load_policy(policy) if policy else None
    return compare([open_run(run) for run in runs], limits, allow_different=allow, baseline=baseline)


def row(comparison: Comparison, name: str) -> DecisionRow:
    return next(one for one in comparison.rows if one.name == name)


def write_policy(folder: Path, bound: float) -> Path:
    path = folder / "policy.toml"
    path.write_text(
        f'name = "p"\ndate = 2020-01-01\n[limits]\nvectors_clipped_frac = {bound}\n'
        '[coverage]\nrequests = 5\ntokens = 5\n[[segments]]\nname = "all"\n'
    )
    return path


def test_every_row_has_its_role_and_invalid_ones_are_never_scored(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 30), candidates=[BF16, CAL, UNIT, BROKEN])
    found = table(run, policy=write_policy(tmp_path, 0.2))
    assert [(one.name, one.role) for one in found.rows] == [
        ("bf16", Role.baseline),
        ("unit", Role.default_scales),
        ("cal", Role.calibrated),
        ("broken", Role.unsupported),
    ]
    broken = row(found, "broken")
    assert (broken.decision, broken.reason) == (Decision.invalid, "k_scale of layer 3 is NaN")
    assert broken.evidence == broken.paired == ()
    assert "k_scale of layer 3 is NaN" in comparison_text(found)


def test_the_policy_decides_and_without_one_nothing_is_decided(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, clipped={HEAD: [10] * 30}),
        candidates=[BF16, CAL, UNIT],
        thresholds={"unit": WIDE},
    )
    found = table(run, policy=write_policy(tmp_path, 0.2))
    assert {one.name: one.decision for one in found.rows} == {
        "bf16": Decision.baseline,
        "unit": Decision.within,
        "cal": Decision.breached,
    }
    assert row(found, "cal").reason == "all · chat"
    assert {one.decision for one in table(run).rows} == {Decision.baseline, Decision.no_policy}
    assert row(table(run, policy=write_policy(tmp_path, 0.01)), "unit").decision is Decision.not_enough


def test_candidates_are_compared_request_by_request_with_regressions_listed(tmp_path: Path) -> None:
    # `cal` clips 2 of 10 vectors of one V head in 20 of 30 requests, where 1.0 clips none.
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, clipped={HEAD: [2] * 20}),
        candidates=[BF16, CAL, UNIT],
        thresholds={"unit": WIDE},
    )
    cal = row(table(run), "cal")
    assert cal.against == "unit"
    k, v = cal.paired
    assert (k.tensor, k.verdict, k.num_heads_worse) == ("k", "equal", 0)
    assert (v.tensor, v.verdict, v.num_heads_worse, v.num_higher) == ("v", "higher", 1, 20)
    assert v.difference == pytest.approx(40 / 600)  # of both V heads' vectors
    assert 0 < v.low < v.difference < v.high
    (regression,) = v.regressions
    assert (regression.layer, regression.kv_head, regression.tensor) == HEAD
    assert regression.value == pytest.approx(40 / 300)  # of that head's


def test_no_difference_among_the_requests_seen_is_not_called_equal(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run", Traffic("chat", 30), candidates=[BF16, CAL, UNIT], thresholds={"unit": WIDE}
    )
    found = table(run)
    k = row(found, "cal").paired[0]
    assert (k.verdict, k.difference) == ("equal", 0)
    assert k.low < 0 < k.high
    text = " ".join(comparison_text(found).split())
    assert "K against unit: no difference seen (+0 %, " in text
    assert "all · chat: no difference seen (+0 %, " in text
    assert ": equal (" not in text


def test_a_regression_is_listed_even_where_the_mean_improves(tmp_path: Path) -> None:
    # `cal` is wide enough where 1.0 clips 9 of 10, and clips 1 of 10 where 1.0 does not.
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, clipped={HEAD: [9] * 30}, outside={OTHER: [1] * 30}),
        candidates=[BF16, CAL, UNIT],
        head_thresholds={("cal", HEAD): WIDE, ("cal", OTHER): (OUT_OF_RANGE - 1, OUT_OF_RANGE - 1)},
    )
    _, v = row(table(run), "cal").paired
    assert v.verdict == "lower"
    assert (v.num_heads_better, v.num_heads_worse) == (1, 1)
    assert (v.regressions[0].layer, v.regressions[0].kv_head, v.regressions[0].tensor) == OTHER


def test_what_was_not_seen_yet_counts_only_where_it_is_possible(tmp_path: Path) -> None:
    # `cal` clips more in 5 of 30 requests. If 1.0 is as wide everywhere, more cannot turn into less; if it is
    # narrower in another head, 25 silent requests are too few to tell.
    traffic = Traffic("chat", 30, clipped={HEAD: [5] * 5})
    verdicts = []
    for name, other_head in (("nested", WIDE), ("crossing", (120, 150))):
        run = gate_run(
            tmp_path / name,
            traffic,
            candidates=[BF16, CAL, UNIT],
            head_thresholds={
                ("unit", HEAD): WIDE,
                ("unit", OTHER): other_head,
                ("cal", OTHER): (120, 190) if name == "crossing" else WIDE,
            },
        )
        verdicts.append(row(table(run), "cal").paired[1].verdict)
    assert verdicts == ["higher", "not enough to tell"]


def test_equal_candidates_of_runs_that_may_differ_both_stay(tmp_path: Path) -> None:
    runs = [
        gate_run(
            tmp_path / name,
            Traffic("chat", 5),
            candidates=[BF16],
            record=run_record(source_record(attention_backends=(name.upper(),))),
        )
        for name in ("one", "other")
    ]
    found = table(*runs, allow=("attention_backend",))
    assert [one.name for one in found.rows] == ["one:bf16", "other:bf16"]


def test_requests_with_other_rows_are_not_paired(tmp_path: Path) -> None:
    one = gate_run(tmp_path / "one", Traffic("chat", 30), candidates=[BF16, UNIT])
    other = gate_run(
        tmp_path / "other",
        Traffic("chat", 30, positions=range(9)),
        candidates=[CAL],
        record=run_record(source_record(trace_sha256="1" * 64)),
    )
    assert row(table(one, other, allow=("trace_sha256",)), "cal").not_paired is not None


def test_layers_left_out_are_compared_with_the_same_scales_without_that(tmp_path: Path) -> None:
    artifact = CAL | {"artifact": "scales", "artifact_sha256": "a" * 64}
    traffic = Traffic("chat", 30, clipped={HEAD: [2] * 20})
    whole = gate_run(tmp_path / "whole", traffic, candidates=[BF16, artifact])
    heads = [*HEADS, *((1, head, tensor) for _, head, tensor in HEADS)]
    both = gate_run(tmp_path / "both", traffic, candidates=[BF16, artifact], heads=heads)
    some = gate_run(
        tmp_path / "some", traffic, candidates=[BF16, artifact], heads=heads, unquantized={"cal": [0]}
    )
    found = table(both, some)
    excluded = row(found, "some:cal")
    assert excluded.role is Role.layers_excluded
    assert excluded.against == "both:cal"
    assert excluded.changed == ("layers left out: 0 instead of none",)
    assert "scales" in excluded.held_constant
    assert [one.verdict for one in excluded.paired] == ["equal", "lower"]
    assert found.same_rows == (f"bf16 of {some} is bf16",)
    assert row(table(whole), "cal").role is Role.calibrated


def test_rows_of_another_trace_are_not_paired(tmp_path: Path) -> None:
    one = gate_run(tmp_path / "one", Traffic("chat", 30), candidates=[BF16, UNIT])
    other = gate_run(
        tmp_path / "other",
        Traffic("chat", 20),
        candidates=[BF16, CAL],
        record=run_record(source_record(trace_sha256="1" * 64)),
    )
    found = table(one, other, allow=("trace_sha256",))
    cal = row(found, "cal")
    assert cal.paired == ()
    assert cal.not_paired == "unit was not replayed on the same vectors"
    assert "trace_sha256 (allowed to differ)" in cal.changed
    assert found.allowed_different == {"trace_sha256": ("0" * 64, "1" * 64)}
    assert "ALLOWED TO DIFFER: trace_sha256" in comparison_text(found)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("trace_sha256", {"trace_sha256": "1" * 64}),
        ("attention_backend", {"attention_backends": ("FLASHINFER",)}),
        ("weights_digest", {"weights_digest": "sha256:bb"}),
        ("tokenizer_revision", {"tokenizer_digest": "sha256:cc"}),
        ("chat_template_digest", {"chat_template_digest": "sha256:dd"}),
        ("model_revision", {"revision": "main"}),
    ],
)
def test_runs_that_differ_in_what_should_be_constant_are_refused_by_name(
    tmp_path: Path, field: str, change: dict[str, Any]
) -> None:
    source = source_record()
    of_model = {name: value for name, value in change.items() if name in type(source.model).model_fields}
    changed = source.model_copy(
        update={"model": source.model.model_copy(update=of_model)} if of_model else change
    )
    one = gate_run(tmp_path / "one", Traffic("chat", 5), record=run_record(source))
    other = gate_run(tmp_path / "other", Traffic("chat", 5), record=run_record(changed))
    with pytest.raises(ComparisonError, match=rf"other: {field} is .*--allow-different {field}$"):
        table(one, other)
    assert field in table(one, other, allow=(field,)).allowed_different


def test_another_evaluator_is_refused_too(tmp_path: Path) -> None:
    one = gate_run(tmp_path / "one", Traffic("chat", 5))
    other = gate_run(tmp_path / "other", Traffic("chat", 5), record=run_record(kvtrace_version="9.0.0"))
    with pytest.raises(ComparisonError, match=r"evaluator_revision is 9\.0\.0"):
        table(one, other)


def test_a_field_that_does_not_exist_cannot_be_allowed(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 5))
    with pytest.raises(ComparisonError, match="--allow-different weights: no such field; there are"):
        table(run, allow=("weights",))


def test_what_nobody_recorded_is_not_called_constant(tmp_path: Path) -> None:
    found = table(gate_run(tmp_path / "run", Traffic("chat", 5)))
    assert found.held_constant["weights_digest"] is None
    assert "weights_digest" not in row(found, "cal").held_constant
    assert "weights_digest: not recorded" in comparison_text(found)


def test_a_candidate_that_the_engine_runs_differently_is_scored_and_says_so(tmp_path: Path) -> None:
    collapsed = CAL | {"note": "per-head scales collapse to their maximum on this backend"}
    run = gate_run(tmp_path / "run", Traffic("chat", 30), candidates=[BF16, collapsed])
    found = table(run)
    assert row(found, "cal").evidence
    assert "note: per-head scales collapse" in comparison_text(found)


def test_a_row_without_quantized_heads_is_known_not_to_clip(tmp_path: Path) -> None:
    found = row(table(gate_run(tmp_path / "run", Traffic("chat", 30))), "bf16")
    assert [(one.low, one.high) for one in found.evidence] == [(0.0, 0.0)] * 2


def test_two_calibrated_candidates_are_compared_where_one_is_named_the_baseline(tmp_path: Path) -> None:
    # `cal` clips 10 of 10 vectors of one V head; `new` clips none, and neither do scales of 1.0.
    new = CAL | {"candidate": "new", "artifact": "new", "ordinal": 5}
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, clipped={HEAD: [10] * 30}),
        candidates=[BF16, CAL, UNIT, new, BROKEN],
        thresholds={"unit": WIDE, "new": WIDE},
    )
    assert [row(table(run), name).against for name in ("cal", "new")] == ["unit", "unit"]
    found = table(run, baseline="cal")
    assert {one.name: one.against for one in found.rows} == {
        "bf16": None,
        "unit": "cal",
        "cal": None,
        "new": "cal",
        "broken": None,
    }
    better = row(found, "new")
    assert better.changed == ("scales: artifact new instead of artifact",)
    assert [pair.verdict for pair in better.paired] == ["equal", "lower"]
    assert better.paired[1].difference == pytest.approx(-0.5), "of both V heads' vectors"
    assert "every row is compared with cal (--baseline)" in comparison_text(found)


@pytest.mark.parametrize(
    ("baseline", "text"),
    [
        ("absent", "--baseline absent: no such candidate; expected one of bf16, unit, cal$"),
        ("broken", "--baseline broken is invalid: k_scale of layer 3 is NaN$"),
    ],
)
def test_a_baseline_that_cannot_be_one_is_refused(tmp_path: Path, baseline: str, text: str) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 5), candidates=[BF16, CAL, UNIT, BROKEN])
    with pytest.raises(ComparisonError, match=text):
        table(run, baseline=baseline)


def test_a_scale_for_every_vector_is_a_row_of_its_own_kind(tmp_path: Path) -> None:
    values = {"num_values": 100, "sum_sq_signal": 1e4, "sum_sq_error": 1.0}
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, clipped={HEAD: [10] * 30}, values=values),
        candidates=[BF16, UNIT, ONLINE],
    )
    found = table(run, policy=write_policy(tmp_path, 0.001))
    online = row(found, str(ONLINE["candidate"]))
    assert (online.role, online.against, online.decision) == (Role.online, "unit", Decision.within)
    assert online.setup == (
        "int8, int8-per-token-head numerics, per token and head, scales chosen while serving"
    )
    assert "granularity: token_head instead of tensor" in online.changed
    k, v = online.evidence
    for one in (k, v):
        assert (one.num_heads_quantized, one.num_heads_clipped, one.sqnr_db) == (2, 0, pytest.approx(40))
        assert (one.vectors_clipped_frac, one.low, one.high) == (0, 0, 0), "known, not estimated"
    assert [pair.verdict for pair in online.paired] == ["equal", "lower"]
    text = " ".join(comparison_text(found).split())
    assert "K: 0 % clipped (0 % to 0 %), 0 of 2 heads, 0 of 30 requests SQNR 40.0 dB" in text


@pytest.mark.parametrize("one_more_covers", [True, False])
def test_what_is_left_unquantized_covers_every_value_of_a_float32_trace_too(
    tmp_path: Path, one_more_covers: bool
) -> None:
    # Codes of float32 are its 31 lower bits: 464 is 0x43E80000. `cal` leaves layer 0 alone.
    at_464, wider = 0x43E80000, 0x44000000
    heads = [*HEADS, *((1, head, tensor) for _, head, tensor in HEADS)]
    layer_1 = wider if one_more_covers else at_464 - 1
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 3),
        candidates=[CAL, UNIT],
        heads=heads,
        thresholds={"cal": (layer_1, layer_1), "unit": (at_464, at_464)},
        unquantized={"cal": [0]},
    )
    connection = connect_with_views(open_run(run))
    found = nested_tensors((connection, "cal"), (connection, "unit"))
    assert found == {"k": one_more_covers, "v": one_more_covers}


def test_a_vector_without_a_finite_value_is_no_trial_of_a_comparison(tmp_path: Path) -> None:
    # Of 30 requests 20 hold nothing but NaN; in the other 10 `cal` clips 5 of 10 vectors of one V head.
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, num_without_finite=20, clipped={HEAD: [5] * 30}),
        candidates=[BF16, CAL, UNIT],
        thresholds={"unit": WIDE},
    )
    _, v = row(table(run), "cal").evidence
    assert (v.vectors_clipped_frac, v.num_requests) == (pytest.approx(50 / 200), 10)
    _, pair = row(table(run), "cal").paired
    assert (pair.difference, pair.num_requests) == (pytest.approx(50 / 200), 10)
    (segment,) = pair.segments
    assert (segment.difference, segment.num_requests) == (pytest.approx(50 / 200), 10)


def group_rows(candidate: str, error: Sequence[float]) -> list[dict[str, object]]:
    return [
        {
            "source": "day",
            "candidate": candidate,
            "layer": 0,
            "kv_head": 0,
            "tensor": "k",
            "workload": "chat",
            "phase": "prefill",
            "request_group": number,
            "num_values": 100,
            "num_clipped": 1 + number % 2,
            "sum_sq_signal": 1000.0,
            "sum_sq_error": value,
            "sum_sq_clip_error": 0.25 * value,
        }
        for number, value in enumerate(error)
    ]


def test_errors_are_compared_group_by_group(tmp_path: Path) -> None:
    # Groups differ tenfold in their error, the two candidates by the same two thirds in each of them.
    errors = [1.0 + 9 * (number % 2) for number in range(16)]
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30, clipped={HEAD: [10] * 30}),
        candidates=[BF16, CAL, UNIT],
        thresholds={"unit": WIDE},
        groups=group_rows("cal", errors) + group_rows("unit", [1.5 * error for error in errors]),
    )
    found = row(table(run), "cal")
    k = next(pair for pair in found.paired if pair.tensor == "k")
    change = 10 * math.log10(1.5)
    assert (k.sqnr_change_db, k.sqnr_change_low_db, k.sqnr_change_high_db) == pytest.approx((change,) * 3)
    evidence = next(one for one in found.evidence if one.tensor == "k")
    assert (evidence.clip_error_low, evidence.clip_error_high) == pytest.approx((0.25, 0.25))
    assert evidence.sqnr_low_db is not None
    assert evidence.sqnr_high_db is not None
    assert evidence.sqnr_low_db < 10 * math.log10(1000 / 5.5) < evidence.sqnr_high_db
    v = next(pair for pair in found.paired if pair.tensor == "v")
    assert (v.sqnr_change_db, v.sqnr_change_low_db) == (None, None)


def test_seven_groups_are_too_few_to_tell_a_change_of_error(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 30),
        candidates=[BF16, CAL, UNIT],
        groups=group_rows("cal", [1.0] * 7) + group_rows("unit", [2.0] * 7),
    )
    k = next(pair for pair in row(table(run), "cal").paired if pair.tensor == "k")
    assert k.sqnr_change_db == pytest.approx(10 * math.log10(2))
    assert (k.sqnr_change_low_db, k.sqnr_change_high_db) == (None, None)
    assert "too few requests to tell" in comparison_text(table(run))


def test_the_difference_is_told_by_workload_and_by_the_policys_segments(tmp_path: Path) -> None:
    run = gate_run(
        tmp_path / "run",
        Traffic("chat", 40, clipped={HEAD: [10] * 40}),
        Traffic("code", 40),
        Traffic("tools", 4, clipped={HEAD: [10] * 4}),
        candidates=[BF16, CAL, UNIT],
        thresholds={"unit": WIDE},
    )

    def verdicts(comparison: Comparison) -> dict[str, str]:
        v = next(pair for pair in row(comparison, "cal").paired if pair.tensor == "v")
        return {segment.name: segment.verdict for segment in v.segments}

    assert verdicts(table(run)) == {
        "all · chat": "higher",
        "all · code": "equal",
        "all · tools": "not enough to tell",
    }
    path = write_policy(tmp_path, 0.5)
    path.write_text(path.read_text() + 'workloads = ["chat"]\npositions = [0, 4, 16]\n')
    found = table(run, policy=path)
    assert verdicts(found) == {
        "all · chat · positions 0 to 3": "higher",
        "all · chat · positions 4 to 15": "higher",
    }
    assert [one.verdict.value for one in row(found, "cal").segments] == ["breached", "breached"]
    text = " ".join(comparison_text(found).split())
    assert "breached: all · chat · positions 0 to 3: vectors_clipped_frac, most in layer 0 head 1 V" in text
