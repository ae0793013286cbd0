"""What a rule is: an id, what it says of a loss, when a reader hears it, what mends it, and examples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvtrace.findings.finding import Finding, Remedy
    from kvtrace.findings.run.case import Case

Role = Literal[
    "cause",  # what the artifact, the engine or the model is: explains what is lost
    "drift",  # where values left the range: explains clipping, and is explained by what the artifact is
    "symptom",  # what is lost
    "circumstance",  # makes a loss likely and does not name its place: what is measured comes first
    "note",  # worth knowing, never a verdict
    "all-clear",  # something is as it should be: a verdict does not name it beside itself
]
InRun = Literal[
    "passed on",  # a replay asks the rule, and a diagnosis repeats what it found
    "stored",  # a replay asks it, and a diagnosis asks the run itself, which knows more
    "left out",  # a run holds its numbers anyway, as the engine would apply the scales
]


About = Literal[
    "drift",  # values left the range that the scales cover
    "wrong scales",  # not those of this model, layer, head or tensor
    "not loaded",  # the engine did not use them
    "format",  # the number format or its granularity does not fit the values
    "values",  # what is wrong was so before quantization
]
Loss = Literal["clips", "flushes"]
"""How values are lost: beyond a range that is too narrow, or below the steps of one that is too wide."""


class Tier(IntEnum):
    """What a reader hears first among findings that are equally severe."""

    cannot_tell = -2
    excluded = -1
    fault = 0
    """What the artifact is, or what ran."""
    place = 1
    """Where values left the range, or why in K or V alone."""
    head = 2
    symptom = 3
    circumstance = 4
    coverage = 5
    rounding_floor = 7
    stored_rounding = 8
    equal_weights = 9
    explained = 10
    """Any finding that another one explains."""


LookedAt = TypeVar("LookedAt")
ExampleOf = TypeVar("ExampleOf")


def same_place(cause: Finding, symptom: Finding, _: Case) -> bool:
    """Return whether all heads of a symptom lie in a cause's layers and tensors, as far as it names any."""
    in_tensors = not cause.tensors or {tensor for _, _, tensor in symptom.heads} <= set(cause.tensors)
    return in_tensors and (not cause.layers or set(symptom.layers) <= set(cause.layers))


@dataclass(frozen=True, slots=True)
class Rule(Generic[LookedAt, ExampleOf]):
    """One kind of finding. Rules of one file may share a `check`, which is then asked once for all."""

    id: str
    """Stays the same between versions."""
    role: Role
    tier: Tier | Callable[[Finding], Tier]
    """One for all its findings, or by the finding."""
    check: Callable[[LookedAt], Iterator[Finding]]
    """Yields findings on an audit's context or on a run; each has the id of a rule with this check."""
    invalid: tuple[ExampleOf, ...]
    """Looked at, each gives a finding of this id."""
    valid: tuple[ExampleOf, ...]
    """Looked at, none gives one."""
    explains: tuple[Role, ...] = ()
    """Roles of the findings on the same scales that its findings can be the cause of."""
    accounts_for: Callable[[Finding, Finding, Case], bool] = same_place
    """(its finding, one of these roles, the run) → whether it is the cause."""
    headline: str | Callable[[Finding], str] = ""
    """What is the case in at most 12 words, with {tensors}, {heads} and {layers} of the finding; empty: its
    findings never lead an answer."""
    about: About | None = None
    """What kind of trouble that is; None: by its role."""
    what_if: str = ""
    """The same of scales that did not run; empty: as `headline`."""
    makes: tuple[Loss, ...] = ("clips", "flushes")
    """Of a cause: the losses that it can make."""
    loss: Loss | None = None
    """Of a symptom or a drift: what it is a loss by."""
    follows_loss: bool | Callable[[Finding], bool] = False
    """It is a note unless it explains a loss, and then lies where that is. For all, or by the finding."""
    recalls_approval: bool = False
    """A gate gives its findings, where they are more than notes, as reasons to approve the scales anew."""
    mended_by: Remedy | None = None
    """What the action and the command of its findings do, unless a finding says another remedy."""
    in_run: InRun = "passed on"
    """What becomes of an artifact's rule in a replay."""

    @property
    def is_about(self) -> About:
        """What kind of trouble it finds."""
        return self.about or ("wrong scales" if self.role == "cause" else "drift")

    def tier_of(self, finding: Finding) -> Tier:
        """Return where one of its findings stands among equals."""
        return self.tier if isinstance(self.tier, Tier) else self.tier(finding)

    def is_as_bad_as_its_loss(self, finding: Finding) -> bool:
        """Return whether one of its findings is a note unless it explains a loss."""
        return self.follows_loss if isinstance(self.follows_loss, bool) else self.follows_loss(finding)


AnyRule = Rule[Any, Any]


def findings_of(rules: Iterable[Rule[LookedAt, Any]], looked_at: LookedAt) -> Iterator[Finding]:
    """Yield what the rules find, in their order, one check after the other."""
    ids: dict[Callable[[LookedAt], Iterator[Finding]], set[str]] = {}
    for rule in rules:
        ids.setdefault(rule.check, set()).add(rule.id)
    for check, own in ids.items():
        for finding in check(looked_at):
            assert finding.id in own, f"{finding.id}: its file declares no such rule"
            yield finding
