"""Not the scales: what was looked at and found sound, and what kvtrace cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.clipping import HEAD_LIMIT, OCTAVE_LIMIT, WORKLOAD_OR_PHASE_LIMIT
from kvtrace.findings.run.example import CLIPS, Clipped, RunExample, RunRule
from kvtrace.findings.run.own_dtype import without_fp8
from kvtrace.findings.run.underflow import FLUSHED_LIMIT, FLUSHED_LIMIT_WITH_ERROR
from kvtrace.not_visible import not_visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.run.case import Case, Row, Subject

_EVIDENCE: Final = """
SELECT tensor, num_values, num_clipped, num_flushed, sqnr_db
FROM value_totals(chosen_cells)
WHERE candidate = $candidate
ORDER BY tensor
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield a note per judged candidate on which nothing above note was found: it excludes the scales."""
    blamed = {one.candidate for one in case.found if one.severity != "note"}
    for subject in case.subjects:
        heads = case.whole_heads(subject.name) if subject.is_valid else []
        if not heads or blamed & {subject.name, None}:
            continue
        sql = bound(_EVIDENCE, candidate=subject.name)
        yield Finding(
            id="not-the-scales",
            severity="note",
            candidate=subject.name,
            message=(
                f"nothing speaks against these scales ({_in_effect(subject)}). Excluded: "
                f"{'; '.join(_excluded(subject, heads))}. Not visible here: {not_visible()}"
            ),
            action=_action(case, subject),
            evidence=tuple(case.rows(sql)),
            sql=sql,
        )


def _in_effect(subject: Subject) -> str:
    if subject.written_otherwise:
        return "they ran, but the engine wrote its cache in another way, so hypothetical"
    return "they are what ran" if subject.in_effect else "they are not what was captured, so hypothetical"


def _action(case: Case, subject: Subject) -> str:
    if subject.written_otherwise:
        return (
            "These scales would cover what was captured if it were written so. To judge what ran, replay it "
            "with the engine and the format that were captured"
        )
    if subject.in_effect:
        return (
            f"Look elsewhere: serve the same prompts {without_fp8(case, subject)}. If quality stays low with "
            "the cache in the model's own dtype, an FP8 cache is not the cause; if it recovers, suspect the "
            "attention kernel or the cache transfer"
        )
    if any(source.cache_kind == "static_fp8" for source in case.run.record.sources):
        return (
            "These scales would cover what was captured. The engine used others, so a loss of quality seen "
            "there is not from these"
        )
    return (
        "These scales would cover what was captured. What FP8 does to quality beyond that shows once they "
        "are served"
    )


def _excluded(subject: Subject, heads: Sequence[Row]) -> Iterator[str]:
    """Yield what was looked for and not found, each with its limit and how near any head comes."""
    clip = max(row["clip_error"] or 0.0 for row in heads)
    flushed = max(row["flushed_frac"] or 0.0 for row in heads)
    beyond = max((row["max_abs"] / row["covered_amax"] for row in heads if row["max_abs"]), default=0.0)
    yield (
        f"a head that loses over {percent(HEAD_LIMIT)} of its energy by clipping "
        f"({percent(WORKLOAD_OR_PHASE_LIMIT)} in a workload or phase, {percent(OCTAVE_LIMIT)} in a range of "
        f"positions); the largest loss is {percent(clip)}, and the largest value is at most "
        f"{times(beyond)} what is covered"
    )
    yield (
        f"a head that flushes over {percent(FLUSHED_LIMIT)} of its values to 0, or "
        f"{percent(FLUSHED_LIMIT_WITH_ERROR)} with twice the error of rounding; the most flushed is "
        f"{percent(flushed)}"
    )
    yield "clipping beyond these limits in one workload, beyond a position or with output length alone"
    if subject.kind == "artifact":
        yield "an error or a warning about the artifact's names, shapes, values or manifest"


RULE: Final = RunRule(
    id="not-the-scales",
    role="all-clear",
    tier=Tier.excluded,
    mended_by="elsewhere",
    check=check,
    invalid=(
        RunExample(),
        RunExample(live=1.5),
    ),
    valid=(
        RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()}),
        RunExample(invalid_as="wrong-model"),
    ),
)
