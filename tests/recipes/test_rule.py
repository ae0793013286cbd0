"""To add a rule: its file, whose examples are its tests, and its line in the list of rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.checkpoints import compressed
from support.recipe import ROOT, TreeCopy

if TYPE_CHECKING:
    from pathlib import Path

RULES = "kvtrace/findings/artifact/rules.py"
TEST = "tests/findings/test_rules.py"
RULE = '''"""Scales above 100: made up for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where any stored scale is above 100."""
    large = [one for one in context.artifact.scales if max(one.values) > 100]
    if large:
        yield Finding(
            id="toy-large",
            severity="warning",
            message=f"{len(large)} scales are above 100",
            action="Divide.",
            evidence=({"num_large": len(large)},),
        )


RULE: Final = ArtifactRule(
    id="toy-large",
    role="cause",
    tier=Tier.fault,
    explains=("symptom",),
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scales=covering({"0.k": 448e3, "0.v": 1.0, "1.k": 1.0, "1.v": 2.0})),),
    valid=(ArtifactExample(),),
)
'''


def test_a_rule_takes_two_files(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path / "tree")
    tree.add("kvtrace/findings/artifact/toy_large.py", RULE)
    tree.edit(RULES, "    too_wide,\n", "    too_wide,\n    toy_large,\n")
    tree.edit(RULES, "    too_wide.RULE,\n", "    too_wide.RULE,\n    toy_large.RULE,\n")
    assert len(tree.touched()) <= 2

    # Its examples, and what holds of every rule.
    tree.add(TEST, (ROOT / TEST).read_text())
    tried = tree.run("-m", "pytest", "-q", "-p", "no:cacheprovider", TEST, "-k", "toy or every_file or tier")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert " passed" in tried.stdout

    path = compressed(tmp_path / "artifact", {"0.k": 200.0, "0.v": 1.0, "1.k": 0.5, "1.v": 0.25})
    done = tree.run("-m", "kvtrace", "scales", path, "--json")
    (found,) = (one for one in json.loads(done.stdout)["findings"] if one["id"] == "toy-large")
    assert (found["severity"], found["message"]) == ("warning", "1 scales are above 100")
