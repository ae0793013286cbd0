"""Every rule, over an artifact and over a run: what ids there are, and what each of them is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact import rules as artifact
from kvtrace.findings.run import rules as run
from kvtrace.findings.run.artifact_faults import passed_on

if TYPE_CHECKING:
    from kvtrace.findings.rule import AnyRule

RULES: Final[tuple[AnyRule, ...]] = (*artifact.RULES, *run.RULES)
DIAGNOSED: Final[tuple[AnyRule, ...]] = (
    *run.RULES,
    *(passed_on(rule) for rule in artifact.RULES if rule.in_run == "passed on"),
)
"""Those whose findings a diagnosis can hold; no two have one id."""
