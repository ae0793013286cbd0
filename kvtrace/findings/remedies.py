"""What mends a finding, made of the run under diagnosis: commands that run as printed, and their order."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.remedies.new_scales import NewScales, checkpoint_among, granularity_for, output_for
from kvtrace.remedies.step import Step

if TYPE_CHECKING:
    from kvtrace.findings.finding import Finding
    from kvtrace.findings.run.case import Case, Subject
    from kvtrace.scales.artifact import Granularity

NEEDS_PER_HEAD: Final = "outlier-head"
"""The finding that one scale cannot serve all heads of a layer."""
HEADROOM: Final = 2.0
"""Room that costs nearly nothing in E4M3."""
_BY_SCALES: Final = ("recalibrate", "look")


def new_scales(case: Case, subject: Subject) -> NewScales:
    """Return how to make scales of the run's traces in place of the subject's.

    Written into a copy of the checkpoint that was given or, where it is still there, of the one that was
    served; alone where neither is the traced model's.
    """
    sources = case.run.record.sources
    first = sources[0]
    granularity = _granularity(case, subject)
    given = [subject.artifact, *(one.artifact for one in case.subjects)]
    served = [source.model.name for source in sources]
    checkpoint = case.once(
        f"checkpoint for {granularity}",
        subject.name,
        lambda: checkpoint_among([*given, *served], first.model, granularity),
    )
    return NewScales(
        traces=tuple(source.path for source in sources),
        model=first.model,
        engine=first.engine,
        granularity=granularity,
        headroom=HEADROOM,
        checkpoint=checkpoint,
        output=output_for(first.path, is_checkpoint=checkpoint is not None),
    )


def checkpoint_of_run(case: Case) -> str | None:
    """Return a checkpoint of the traced model that is here, given or served; None: there is none."""
    sources = case.run.record.sources
    paths = [*(one.artifact for one in case.subjects), *(one.model.name for one in sources)]
    return checkpoint_among(paths, sources[0].model, "tensor")


def per_head_scales(case: Case, subject: Subject) -> NewScales:
    """Return how to make scales per head in place of the subject's, where its engine takes them."""
    return replace(new_scales(case, subject), granularity="attn_head")


def recalibrate_command(case: Case, subject: Subject) -> str:
    """Return the command that makes new scales, with room to spare."""
    return new_scales(case, subject).calibrate_command


def scales_command(case: Case, artifact: str | None, *options: str) -> str | None:
    """Return the command that shows an artifact layer by layer; None: the scales were given as numbers."""
    if artifact is None:
        return None
    trace = case.run.record.sources[0].path
    return " ".join(["kvtrace scales", _quoted(artifact), "--trace", _quoted(trace), *options])


def takes_per_head(case: Case, subject: Subject) -> bool:
    """Return whether scales per head would be used as such where the subject's run."""
    return subject.reason_id != "per-head-refused" and all(
        granularity_for(source.model, source.attention_backends, subject.engine) == "attn_head"
        for source in case.run.record.sources
    )


def steps_to_mend(case: Case, subject: Subject | None, finding: Finding | None) -> tuple[Step, ...]:
    """Return what to do about a finding, in order.

    Where an artifact is to be looked at, new scales come after that: they serve whatever is found there.
    """
    if finding is None or subject is None or finding.severity == "note":
        return ()
    first = (Step("look", finding.action, finding.command),) if finding.remedy == "look" else ()
    if finding.remedy in _BY_SCALES:
        return first + scales_for(case, subject, finding).steps()
    return ()


def scales_for(case: Case, subject: Subject, finding: Finding | None) -> NewScales:
    """Return how to make the scales that a finding calls for in place of the subject's."""
    is_per_head = finding is not None and finding.id == NEEDS_PER_HEAD
    return per_head_scales(case, subject) if is_per_head else new_scales(case, subject)


def is_mended_by_scales(subject: Subject, finding: Finding | None) -> bool:
    """Return whether new scales are what to do about the finding that leads.

    Without one they are where the subject's scales did not run: then the engine used none yet.
    """
    if finding is None or finding.severity == "note":
        return not subject.in_effect
    return finding.remedy in _BY_SCALES


def _granularity(case: Case, subject: Subject) -> Granularity:
    """Return attn_head where the subject's scales are per head, or where what ran FP8 takes such scales."""
    if not takes_per_head(case, subject):
        return "tensor"
    ran_fp8 = all(one.cache_kind == "static_fp8" for one in case.run.record.sources)
    return "attn_head" if ran_fp8 or subject.granularity != "tensor" else "tensor"


def _quoted(path: str) -> str:
    """Return a path for a shell. One with control characters is shown escaped, which is no path to copy."""
    return shlex.quote(plain(path, 1000))
