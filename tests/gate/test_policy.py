from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import kvtrace.gate.policy
from kvtrace.errors import PolicyError
from kvtrace.gate.outcome import Verdict
from kvtrace.gate.policy import Approved, Coverage, HarmLimits, Limits, Policy, Segment, load_policy
from kvtrace.gate.segments import protected_segments

GUIDE = Path(__file__).parents[2] / "docs" / "policy.md"
POLICY = """
name = "chat service"
date = 2026-11-20
[limits]
vectors_clipped_frac = 0.01
sqnr_db = 25.0
[coverage]
requests = 30
tokens = 500
[[segments]]
name = "all"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_documented_example_is_a_policy(tmp_path: Path) -> None:
    assert kvtrace.gate.policy.__doc__
    example = kvtrace.gate.policy.__doc__.split("\n\n", 1)[1]
    loaded = load_policy(write(tmp_path, example)).policy
    assert [one.name for one in loaded.segments] == ["all", "long prompts"]
    assert loaded.segments[1].limits is not None


def test_the_guides_example_is_a_policy_and_means_what_it_says(tmp_path: Path) -> None:
    example = GUIDE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    loaded = load_policy(write(tmp_path, example)).policy
    every, long_prompts = protected_segments(loaded, ["retrieval"])
    assert every.limits.given() == {"vectors_clipped_frac": 0.01, "clip_error_frac": 0.1, "sqnr_db": 25.0}
    assert (every.coverage.requests, every.coverage.tokens) == (30, 500)
    assert long_prompts.name == (
        "long prompts · retrieval · prefill · positions 4,096 to 8,191 · prompt tokens 2,048 to 8,192"
    )
    assert long_prompts.limits.given() == {"vectors_clipped_frac": 0.02}
    assert (long_prompts.coverage.requests, long_prompts.coverage.tokens) == (10, 200)
    assert loaded.approved.engine_version == "vllm 0.32.0"


def test_the_guide_names_every_key_with_its_default_and_every_verdict_with_its_exit_code() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    tables = {"limits", "coverage", "segments", "approved"}
    for model in (Policy, Limits, HarmLimits, Coverage, Segment, Approved):
        for key, field in model.model_fields.items():
            row = next(
                (line for line in text.splitlines() if line.startswith("|") and f"`{key}`" in line), None
            )
            assert row or key in tables, f"{key} has no row"
            if row and isinstance(field.default, str | float):
                assert str(field.default) in row.rsplit("|", 2)[1], f"the default of {key} is {field.default}"
    for verdict in Verdict:
        assert re.search(rf"^\| {verdict.exit_code} \| {verdict.value} \|", text, re.MULTILINE)


def test_a_policy_keeps_its_date_and_the_hash_of_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, POLICY)
    loaded = load_policy(path)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.policy.date.isoformat() == "2026-11-20"
    assert loaded.policy.limits is not None
    assert loaded.policy.limits.given() == {"vectors_clipped_frac": 0.01, "sqnr_db": 25.0}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sqnr_db", "sqnr", "limits.sqnr: no such key; expected one of"),
        ('name = "all"', 'name = "all"\nworkload = ["chat"]', "segments.0.workload: no such key"),
        ("[limits]", "limit = 3\n[limits]", "limit: no such key; expected one of approved, "),
        ("date = 2026-11-20", "", "date: missing"),
        ("requests = 30", "", "coverage.requests: missing"),
        ("requests = 30", "requests = 0", "coverage.requests"),
        ("= 0.01", "= 1.5", "limits.vectors_clipped_frac"),
        ("= 25.0", "= nan", "limits.sqnr_db"),
        ('[[segments]]\nname = "all"', "", "segments: missing"),
        ("vectors_clipped_frac = 0.01\nsqnr_db = 25.0", "", "expected at least one limit"),
        ('name = "all"', 'name = "all"\npositions = [8, 4]', "ascending edges"),
        (
            'name = "all"',
            'name = "all"\nprompt_tokens = [0, 64]',
            "sqnr_db cannot be measured by request length",
        ),
        ('name = "all"', 'name = "all"\npositions = [0, 3000]', "between powers of two"),
        ('name = "chat service"', "name = [", "not TOML"),
        ("requests = 30", "requests = true", "coverage.requests"),
        ('name = "all"', 'name = "all"\n[[segments]]\nname = "all"', "two segments are called 'all'"),
    ],
)
def test_what_a_policy_cannot_mean_is_refused_by_name(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    path = write(tmp_path, POLICY.replace(old, new))
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_segment_without_any_limits_is_refused(tmp_path: Path) -> None:
    text = POLICY.replace("[limits]\nvectors_clipped_frac = 0.01\nsqnr_db = 25.0\n", "")
    with pytest.raises(PolicyError, match="segment 'all' has no limits"):
        load_policy(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"absent\.toml: cannot be read"):
        load_policy(tmp_path / "absent.toml")


def test_hostile_text_in_a_policy_stays_plain(tmp_path: Path) -> None:
    path = write(tmp_path, POLICY.replace("sqnr_db", '"\\u001b[31m"'))
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert "\x1b" not in str(caught.value)


def test_workloads_are_never_pooled_and_edges_make_one_segment_each(tmp_path: Path) -> None:
    text = POLICY.replace('name = "all"', 'name = "all"\npositions = [0, 2048, 8192]')
    policy = load_policy(write(tmp_path, text)).policy
    found = protected_segments(policy, ["code", "chat"])
    assert [(one.workload, one.positions) for one in found] == [
        ("chat", (0, 2048)),
        ("chat", (2048, 8192)),
        ("code", (0, 2048)),
        ("code", (2048, 8192)),
    ]
    assert found[1].name == "all · chat · positions 2,048 to 8,191"


def test_a_named_workload_stays_a_segment_when_the_run_has_none_of_it(tmp_path: Path) -> None:
    text = POLICY.replace('name = "all"', 'name = "tools"\nworkloads = ["tools"]')
    policy = load_policy(write(tmp_path, text)).policy
    assert [one.workload for one in protected_segments(policy, ["chat"])] == ["tools"]


def test_limits_of_a_segment_replace_the_common_ones(tmp_path: Path) -> None:
    text = POLICY + "prompt_tokens = [0, 64]\nlimits = {vectors_clipped_frac = 0.5}\n"
    policy = load_policy(write(tmp_path, text)).policy
    assert protected_segments(policy, ["chat"])[0].limits.given() == {"vectors_clipped_frac": 0.5}
