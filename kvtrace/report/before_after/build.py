"""From two runs to what changed between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.report.answer.told import CLIPS
from kvtrace.report.before_after.answer import answer_on_two
from kvtrace.report.before_after.differences import differences
from kvtrace.report.before_after.model import (
    BEFORE_AFTER_SCHEMA_VERSION,
    BeforeAfter,
    HeadChange,
    ScalesChange,
)
from kvtrace.report.build import build_report

if TYPE_CHECKING:
    from kvtrace.findings.diagnose import HeadLoss
    from kvtrace.findings.finding import Head
    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run

MOST_LISTED: Final = 20
SAME_WITHIN: Final = 0.004
"""What a bf16 copy of a scale may differ by, as `is_same_scale` of queries/measures.sql has it."""

_Heads = dict["Head", "HeadLoss"]


def build_before_after(before: Run, after: Run, *, kept: tuple[bool, bool] = (True, True)) -> BeforeAfter:
    """Return what changed from one deployment to the other.

    kept: whether each run outlives the report.
    Raises IntegrityError: a file of a run is damaged.
    """
    first, second = (
        build_report(run, run_kept=is_kept) for run, is_kept in zip((before, after), kept, strict=True)
    )
    old, new = _heads(first), _heads(second)
    scales = _scales(old, new)
    changed = sorted(
        (one for one in _changes(old, new) if one.clip_error_before != one.clip_error_after),
        key=lambda one: (
            -abs(one.clip_error_after - one.clip_error_before),
            one.layer,
            one.kv_head,
            one.tensor,
        ),
    )
    differ, same = differences(before, after, (first, second))
    return BeforeAfter(
        schema_version=BEFORE_AFTER_SCHEMA_VERSION,
        kvtrace_version=second.kvtrace_version,
        answer=answer_on_two(first, second, scales, changed, differ, clips=(_clips(first), _clips(second))),
        scales=scales,
        clips_before=_clips(first),
        clips_after=_clips(second),
        num_heads_before=len(old),
        num_heads_after=len(new),
        heads=tuple(changed[:MOST_LISTED]),
        num_worse=sum(one.clip_error_after > one.clip_error_before for one in changed),
        num_better=sum(one.clip_error_after < one.clip_error_before for one in changed),
        differs=tuple(differ),
        same=tuple(same),
        before=first,
        after=second,
    )


def _heads(report: Report) -> _Heads:
    """Return the heads whose scales cover anything."""
    return {(one.layer, one.kv_head, one.tensor): one for one in report.losses if one.covered_amax > 0}


def _clips(report: Report) -> int:
    """Return the heads that clip enough to matter under the scales of the report's answer."""
    return sum(
        len(one.heads)
        for one in report.findings
        if one.id in CLIPS and one.candidate == report.answer.candidate
    )


def _scales(old: _Heads, new: _Heads) -> ScalesChange:
    ratios = [_covered_ratio(old[head], new[head]) for head in old.keys() & new.keys()]
    changed = [ratio for ratio in ratios if abs(ratio - 1) > SAME_WITHIN]
    return ScalesChange(
        num_heads=len(ratios),
        num_changed=len(changed),
        least_ratio=min(changed, default=None),
        largest_ratio=max(changed, default=None),
        num_only_before=len(old.keys() - new.keys()),
        num_only_after=len(new.keys() - old.keys()),
    )


def _changes(old: _Heads, new: _Heads) -> list[HeadChange]:
    return [_change(old[head], new[head]) for head in sorted(old.keys() & new.keys())]


def _change(old: HeadLoss, new: HeadLoss) -> HeadChange:
    return HeadChange(
        layer=new.layer,
        kv_head=new.kv_head,
        tensor=new.tensor,
        clip_error_before=old.clip_error,
        clip_error_after=new.clip_error,
        range_used_before=_range_used(old),
        range_used_after=_range_used(new),
        covered_ratio=_covered_ratio(old, new),
    )


def _range_used(one: HeadLoss) -> float:
    return one.max_abs / one.covered_amax


def _covered_ratio(old: HeadLoss, new: HeadLoss) -> float:
    return new.covered_amax / old.covered_amax
