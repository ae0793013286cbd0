"""What every rule says of itself: its examples are found and let be, its id is its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from support.examples import audited, run_of

from kvtrace.findings.artifact import rules as artifact
from kvtrace.findings.diagnose import diagnose
from kvtrace.findings.rule import Role, Tier, findings_of
from kvtrace.findings.rules import DIAGNOSED, RULES
from kvtrace.findings.run import rules as run
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
    from kvtrace.findings.rule import AnyRule
    from kvtrace.findings.run.example import RunExample, RunRule

PACKAGE = Path(artifact.__file__).parents[1]


def examples(rules: tuple[Any, ...]) -> list[Any]:
    return [
        pytest.param(rule, kind, example, id=f"{rule.id} {kind} {number}")
        for rule in rules
        for kind in ("invalid", "valid")
        for number, example in enumerate(getattr(rule, kind))
    ]


@pytest.mark.parametrize(("rule", "kind", "example"), examples(artifact.RULES))
def test_a_rule_over_an_artifact_finds_its_invalid_examples_and_no_valid_one(
    rule: ArtifactRule, kind: str, example: ArtifactExample, tmp_path: Path
) -> None:
    found = {one.id for one in findings_of([rule, *_of_one_check(rule)], audited(example, tmp_path))}
    assert (rule.id in found) is (kind == "invalid")


@pytest.mark.parametrize(("rule", "kind", "example"), examples(run.RULES))
def test_a_rule_over_a_run_finds_its_invalid_examples_and_no_valid_one(
    rule: RunRule, kind: str, example: RunExample, tmp_path: Path
) -> None:
    diagnosis = diagnose(open_run(run_of(example, tmp_path / "run")))
    assert (rule.id in {one.id for one in diagnosis.findings}) is (kind == "invalid")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_an_example_of_both_kinds(rule: AnyRule) -> None:
    assert rule.invalid
    assert rule.valid


@pytest.mark.parametrize("rules", [artifact.RULES, run.RULES, DIAGNOSED], ids=["artifact", "run", "both"])
def test_no_two_rules_that_one_reader_meets_have_one_id(rules: tuple[AnyRule, ...]) -> None:
    assert len({rule.id for rule in rules}) == len(rules)


def test_every_file_of_rules_is_asked() -> None:
    """A file that declares a rule and is in no list would never be run."""
    for folder, rules in (("artifact", artifact.RULES), ("run", run.RULES)):
        declaring = {
            path.stem
            for path in (PACKAGE / folder).glob("*.py")
            if re.search(r"= (Artifact|Run)Rule\($|= _rule\(", path.read_text(), re.MULTILINE)
        }
        assert declaring - {"example"} == {rule.check.__module__.split(".")[-1] for rule in rules}


def test_what_explains_others_is_a_cause_or_a_drift_and_explains_what_can_be_explained() -> None:
    for rule in RULES:
        assert rule.role in get_args(Role)
        if rule.explains:
            assert rule.role in ("cause", "drift")
            assert set(rule.explains) <= {"symptom", "drift"}
        assert not (rule.role == "drift" and "drift" in rule.explains)


def test_a_tier_is_a_rules_own_and_never_that_of_what_is_explained() -> None:
    tiers = {rule.tier for rule in RULES if isinstance(rule.tier, Tier)}
    assert Tier.explained not in tiers
    assert {Tier.cannot_tell, Tier.coverage, Tier.explained} == set(Tier) - tiers  # the first two: coverage


def test_a_rule_without_a_tier_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="tier"):
        type(RULES[0])(id="new", role="cause", check=RULES[0].check, invalid=(), valid=())  # type: ignore[call-arg]


def test_a_finding_that_its_file_does_not_declare_is_a_bug() -> None:
    class Other:
        id = "of-another-file"

    rule = type(RULES[0])(
        id="new", role="cause", tier=Tier.fault, check=lambda _: iter([Other()]), invalid=(), valid=()
    )
    with pytest.raises(AssertionError, match="of-another-file: its file declares no such rule"):
        list(findings_of([rule], None))


def _of_one_check(rule: ArtifactRule) -> list[ArtifactRule]:
    return [other for other in artifact.RULES if other.check is rule.check and other is not rule]
