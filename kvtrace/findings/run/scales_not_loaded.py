"""Were the scales really used? What the captured engine had in effect, against what was shipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.per_head_collapsed import RULE as PER_HEAD_COLLAPSED
from kvtrace.findings.artifact.rank_scales_everywhere import RULE as RANK_SCALES_EVERYWHERE
from kvtrace.findings.artifact.scales_not_loaded import WHAT_IF
from kvtrace.findings.finding import IN_EFFECT, Finding, tensors_in
from kvtrace.findings.remedies import recalibrate_command, scales_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import RunExample, RunRule
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.run.case import Case, Row, Subject

_EFFECTIVE: Final = """
SELECT source, layer, tensor, count(*) AS num_heads,
  count(*) FILTER (effective_scale = 1) AS num_exactly_one,
  min(effective_scale) AS min_scale, max(effective_scale) AS max_scale
FROM effective_scales
WHERE effective_scale IS NOT NULL
GROUP BY source, layer, tensor
ORDER BY source, layer, tensor
"""
_DIFFERENT: Final = """
SELECT source, layer, tensor, kv_head, scale AS shipped_scale, effective_scale
FROM scales JOIN effective_scales USING (source, layer, kv_head, tensor)
WHERE candidate = $candidate
  AND scale IS NOT NULL AND effective_scale IS NOT NULL
  AND NOT is_same_scale(scale, effective_scale)
ORDER BY source, layer, tensor, kv_head
"""
_QUALITY: Final = """
SELECT candidate, max(sqnr_db) FILTER (tensor = 'k') AS k,
  max(sqnr_db) FILTER (tensor = 'v') AS v
FROM value_totals(chosen_cells) JOIN candidates USING (candidate)
WHERE candidate = $candidate OR kind = 'effective'
GROUP BY candidate
ORDER BY candidate
"""
_TOLD_BY_THE_AUDIT: Final = (PER_HEAD_COLLAPSED.id, RANK_SCALES_EVERYWHERE.id)
"""How the engine came to other scales than this artifact's."""
_SHIPPED: Final = """
SELECT count(*) AS num_scales FROM scales WHERE candidate = $candidate
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield an error where no artifact is what ran, a warning where none is given and 1.0 ran."""
    effective = case.rows(bound(_EFFECTIVE))
    if not effective:
        return  # no FP8 in effect: nothing can be said, and the verdict says so
    artifacts = [
        one
        for one in case.subjects
        if one.kind == "artifact" and one.is_valid and not case.has_stored(one.name, RULE.id, WHAT_IF)
    ]
    if not artifacts:
        yield from _default(case, effective)
        return
    if any(one.in_effect for one in artifacts):
        return
    found = [(one, case.rows(bound(_DIFFERENT, candidate=one.name))) for one in artifacts]
    # The one that fits best is the one that was meant: the others are alternatives to it.
    meant, different = min(found, key=lambda pair: len(pair[1]))
    if not any(case.has_stored(meant.name, one, IN_EFFECT) for one in _TOLD_BY_THE_AUDIT):
        yield _not_what_ran(case, meant, different)


def _default(case: Case, effective: Sequence[Row]) -> Iterator[Finding]:
    ones = [row for row in effective if row["num_exactly_one"] == row["num_heads"]]
    if not ones:
        return
    layers = sorted({row["layer"] for row in ones})
    everywhere = len(ones) == len(effective)
    where = "every layer" if everywhere else f"{len(layers)} layers ({_span(layers)})"
    ran = next(one for one in case.subjects if one.in_effect)
    yield Finding(
        id="scales-not-loaded",
        severity="warning",
        candidate=ran.name,
        message=f"the engine used 1.0 in {where}: no calibrated scale was in effect there",
        action="If a checkpoint with scales was meant, give it with --scales and ask again. Else make some",
        command=recalibrate_command(case, ran),
        remedy="recalibrate",
        evidence=tuple(ones[:10]),
        sql=bound(_EFFECTIVE),
        layers=() if everywhere else tuple(layers),
    )


def _not_what_ran(case: Case, meant: Subject, different: Sequence[Row]) -> Finding:
    total = case.rows(bound(_SHIPPED, candidate=meant.name))[0]["num_scales"]
    ones = [row for row in different if row["effective_scale"] == 1.0]
    layers = sorted({row["layer"] for row in different})
    first = different[0]
    name = plain(meant.name, 40)
    if len(ones) == len(different):
        what = f"the scales were not loaded: the engine used 1.0 where {name} ships others"
        action = "Read what the loader does with the file; restart, capture again and compare"
    else:
        what = f"other scales ran: those in effect are not {name}'s"
        action = (
            "Find the checkpoint that the engine was started with and give it with --scales, or restart with "
            "this one and capture again"
        )
    return Finding(
        id="scales-not-loaded",
        severity="error",
        candidate=meant.name,
        message=(
            f"{what}: {len(different)} of {total} differ, in {len(layers)} layers ({_span(layers)}); first "
            f"layer {first['layer']} head {first['kv_head']} {first['tensor'].upper()}, shipped "
            f"{first['shipped_scale']:.4g}, in effect {first['effective_scale']:.4g}. {_quality(case, meant)}"
        ),
        action=action,
        command=scales_command(case, meant.artifact),
        evidence=tuple(different[:10]),
        sql=bound(_DIFFERENT, candidate=meant.name),
        layers=tuple(layers),
        tensors=tensors_in((row["layer"], row["kv_head"], row["tensor"]) for row in different),
        is_about_what_ran=True,
        impact=len(different) / total,
    )


def _quality(case: Case, meant: Subject) -> str:
    """Return what the mix-up costs: it need not be why quality fell."""
    found = {row["candidate"]: row for row in case.rows(bound(_QUALITY, candidate=meant.name))}
    ran, shipped = (found[name] for name in sorted(found, key=lambda name: name == meant.name))
    return (
        f"SQNR of what ran: K {_db(ran['k'])}, V {_db(ran['v'])} dB; of what was shipped: "
        f"K {_db(shipped['k'])}, V {_db(shipped['v'])}"
    )


def _db(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _span(layers: Sequence[int]) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"


def _is_the_default(finding: Finding) -> bool:
    """Return whether no scales were given: 1.0 is then a choice like any other, as bad as what it loses."""
    return finding.remedy == "recalibrate"


def _headline(finding: Finding) -> str:
    if _is_the_default(finding):
        return "The engine used scale 1.0 in {layers}"
    return "The engine did not use these scales in {layers}"


RULE: Final = RunRule(
    id="scales-not-loaded",
    headline=_headline,
    about="not loaded",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    follows_loss=_is_the_default,
    mended_by="look",
    check=check,
    invalid=(
        RunExample(live=1.0),
        RunExample(live=3.0),
    ),
    valid=(
        RunExample(live=1.5),
        RunExample(),
    ),
)
