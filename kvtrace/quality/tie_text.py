"""What goes with lost answers, for people: plain text on 80 columns, the answer first."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent
from kvtrace.plain_text import plain, wrapped
from kvtrace.quality.text import rate_in_words
from kvtrace.quality.tied import TieVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.quality.tied import LostAnswer, QualityTie, Signal

_MOST_SHOWN: Final = 10
_WORDS: Final = {"clipped": "clipped", "out_of_range": "out of range"}


def tie_headline(found: QualityTie) -> str:
    """Return the answer in one sentence, which says what goes with what and never why."""
    match found.verdict:
        case TieVerdict.goes_with:
            best = min(found.signals, key=lambda one: (one.p_value, one.layer is None, -one.auc))
            return (
                f"of {count(found.num_lost, 'lost answer')} {best.num_lost_with:,} had {_named(best)}, "
                f"against {best.num_kept_with:,} of {found.num_kept:,} kept ones"
            )
        case TieVerdict.nothing:
            return "nothing that was captured tells lost from kept: rounding, Q or kernels may"
        case TieVerdict.too_few:
            return f"{found.num_lost:,} lost and {count(found.num_kept, 'kept answer')} are too few to tell"


def tie_text(found: QualityTie) -> str:
    """Return the tie as text."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: QualityTie) -> Iterator[str]:
    yield from wrapped(f"kvtrace quality tie · {plain(found.variant)} · {plain(found.candidate)}", "")
    yield from wrapped(f"{found.verdict.value.upper()}: {tie_headline(found)}", "")
    yield ""
    yield from wrapped(
        f"{found.num_joined:,} of {count(found.num_answers, 'answer')} of {plain(found.baseline)} are in "
        f"{plain(PurePath(found.trace).name)}; {found.num_not_captured:,} of those to compare were not "
        f"captured, or too little; {found.num_lost_by_noise:,} lost ones were lost to noise too "
        "and are left out",
        "",
    )
    if found.signals:
        yield ""
        yield f"SIGNALS   {found.num_signals:,} compared at once; p is corrected for all of them"
        for one in found.signals:
            yield from wrapped(_signal(one), "  ", "    ")
    if found.lost:
        yield ""
        yield "LOST      most clipped first"
        for row in found.lost[:_MOST_SHOWN]:
            yield from wrapped(_lost(row), "  ", "    ")
        if len(found.lost) > _MOST_SHOWN:
            yield f"  and {len(found.lost) - _MOST_SHOWN:,} more: --json has them"
    yield ""
    yield from wrapped(
        f"{100 * found.confidence:g} % intervals by request. What goes with lost answers need not be why "
        "they were lost.",
        "",
    )


def _signal(one: Signal) -> str:
    return (
        f"{_named(one)}: {rate_in_words(one.lost_frac)} of lost, {rate_in_words(one.kept_frac)} of kept; "
        f"a lost one has more in {percent(one.auc)} of pairs, p {one.p_value:.2g}"
    )


def _named(one: Signal) -> str:
    where = "" if one.layer is None else f" in layer {one.layer} head {one.kv_head}"
    return f"{one.tensor.upper()} {_WORDS[one.measure]}{where}"


def _lost(row: LostAnswer) -> str:
    task = f"{plain(row.task)}/" if row.task else ""
    where = "" if row.worst_layer is None else f", most in layer {row.worst_layer} head {row.worst_kv_head}"
    return (
        f"{task}{plain(row.id)}: {percent(row.vectors_clipped_frac)} of {row.tensor.upper()}'s vectors "
        f"clipped, {row.rank:,} of {row.num_ranked:,}{where}"
    )
