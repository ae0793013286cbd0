"""The weights against those of the checkpoint given with --against: changed, or equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where a tensor that is no scale differs: more than the scales changed. Else a note."""
    found = context.weights
    if found is None:
        return
    different = [*found.changed, *found.only_here, *found.only_there]
    evidence = {
        "against": found.against,
        "num_tensors": found.num_tensors,
        "num_changed": len(found.changed),
        "num_only_here": len(found.only_here),
        "num_only_there": len(found.only_there),
        "names": [plain(name, 200) for name in different[:20]],
    }
    if found.is_equal:
        yield Finding(
            id="weights-equal",
            severity="note",
            message=f"all {found.num_tensors:,} tensors that are no scales equal those of "
            f"{plain(found.against, 200)}",
            action="Nothing: only the scales differ.",
            evidence=(evidence,),
        )
        return
    yield Finding(
        id="weights-changed",
        severity="error",
        message=f"{len(different):,} of {found.num_tensors + len(found.only_there):,} tensors that are no "
        f"scales differ from {plain(found.against, 200)}, such as {plain(different[0], 100)}",
        action="Compare scales on equal weights: a difference in quality may come from the weights.",
        evidence=(evidence,),
    )


CHANGED: Final = ArtifactRule(
    id="weights-changed",
    headline="The weights changed after the calibration",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    recalls_approval=True,
    mended_by="look",
    check=check,
    invalid=(ArtifactExample(weights=(1.0, 2.0)),),
    valid=(
        ArtifactExample(weights=(1.0, 1.0)),
        ArtifactExample(),
    ),
)


EQUAL: Final = ArtifactRule(
    id="weights-equal",
    role="all-clear",
    tier=Tier.equal_weights,
    check=check,
    invalid=(ArtifactExample(weights=(1.0, 1.0)),),
    valid=(
        ArtifactExample(weights=(1.0, 2.0)),
        ArtifactExample(),
    ),
)
