"""A comparison of quality for people: plain text on 80 columns, the verdict first."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent
from kvtrace.plain_text import plain, wrapped
from kvtrace.quality.comparison import Verdict
from kvtrace.quality.logprobs_text import logprobs_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.quality.comparison import (
        Difference,
        Disagreement,
        JoinedAnswers,
        QualityComparison,
        Rate,
        SegmentQuality,
        VariantQuality,
    )

_MOST_SHOWN: Final = 10


def quality_text(found: QualityComparison) -> str:
    """Return the comparison as text."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: QualityComparison) -> Iterator[str]:
    names = " · ".join(plain(PurePath(table).name) for table in found.tables)
    yield from wrapped(f"kvtrace quality compare · {names}", "")
    named = (
        "limits of the command line"
        if found.policy_name is None
        else f"policy {plain(found.policy_name)} of {found.policy_date}"
    )
    looks = "" if found.looks_planned == 1 else f", look {found.looks_taken} of {found.looks_planned}"
    yield from wrapped(f"{found.verdict.value.upper()}, by {named}{looks}", "")
    yield ""
    yield from wrapped(f"baseline {plain(found.baseline)}; {_noise(found)}", "")
    if found.joined is not None:
        yield from wrapped(_joined(found.joined), "")
    for one in found.leakage:
        yield from wrapped(f"calibration {plain(PurePath(one.artifact).name)}: {one.state}: {one.reason}", "")
    for variant in found.variants:
        yield ""
        yield from _variant(variant)
    if found.logprobs is not None:
        yield ""
        yield from logprobs_lines(found.logprobs)
    if found.review:
        yield from ("", "REVIEW   answers on which a variant and the baseline disagree")
        for row in found.review[:_MOST_SHOWN]:
            yield from wrapped(_review(row), "  ", "    ")
        if len(found.review) > _MOST_SHOWN:
            yield f"  and {len(found.review) - _MOST_SHOWN:,} more: --json has them"
    yield ""
    yield from wrapped(
        f"{100 * found.confidence:g} % intervals: {found.interval_method}. A loss that is not seen is not "
        "yet excluded: only the high end says what may be lost.",
        "",
    )


def _noise(found: QualityComparison) -> str:
    if found.noise is None or found.noise_pair is None:
        return "noise not measured: there is no second run of it"
    one = found.noise_pair
    return (
        f"its second run {plain(found.noise)} differs in {percent(one.discordant_frac)} of "
        f"{count(one.num_pairs, 'answer')} ({one.num_lost:,} lost, {one.num_won:,} won): that is noise"
    )


def _joined(one: JoinedAnswers) -> str:
    num_joined = one.num_by_client_id + one.num_by_external_id + one.num_by_prompt
    return (
        f"joined to {plain(PurePath(one.trace).name)}: {num_joined:,} of {count(one.num_answers, 'answer')} "
        f"({percent(num_joined / one.num_answers)}), {one.num_by_client_id:,} by id, "
        f"{one.num_by_external_id:,} by the server's request id, {one.num_by_prompt:,} by prompt; "
        f"{one.num_sampled:,} were sampled"
    )


def _variant(variant: VariantQuality) -> Iterator[str]:
    yield from wrapped(f"{plain(variant.variant)}: {variant.verdict.value.upper()}", "")
    yield from wrapped(
        f"{count(variant.num_answers, 'answer')}: {variant.num_paired:,} paired, {variant.num_unpaired:,} "
        f"unpaired, {variant.num_unjudged:,} unjudged; same prompt checked for {variant.num_same_prompt:,}",
        "  ",
    )
    for segment in variant.segments:
        yield from _segment(segment)


def _segment(one: SegmentQuality) -> Iterator[str]:
    yield from wrapped(f"{plain(one.segment)}: {one.verdict.value}: {one.reason}", "  ", "    ")
    if one.pairs_missing is not None:
        yield f"    still missing: about {count(one.pairs_missing, 'pair')}"
    elif one.verdict is Verdict.too_few and one.reason_id != "too-many-looks":
        yield "    more pairs of this kind would hardly tell"
    if one.difference is None or one.baseline_pass is None or one.candidate_pass is None:
        return
    yield from wrapped(_loss(one.difference, one.num_baselines), "    ", "      ")
    yield from wrapped(
        f"passed {rate_in_words(one.baseline_pass)} before, {rate_in_words(one.candidate_pass)} now; "
        f"margin {percent(one.margin)}, floor {percent(one.floor)}",
        "    ",
        "      ",
    )
    if one.noise_discordant_frac is not None:
        more = "more than noise" if one.more_than_noise else "not shown to be more than noise"
        yield from wrapped(
            f"{percent(one.difference.discordant_frac)} of answers differ, "
            f"{percent(one.noise_discordant_frac)} between the runs of the baseline: {more}",
            "    ",
            "      ",
        )


def _loss(one: Difference, num_baselines: int) -> str:
    against = "" if num_baselines == 1 else ", against both runs of the baseline"
    mcnemar = (
        ""
        if one.mcnemar_p is None
        else f"; McNemar p {one.mcnemar_p:.2g} of any difference, not of the margin"
    )
    clusters = "" if one.num_clusters == one.num_pairs else f" in {count(one.num_clusters, 'cluster')}"
    return (
        f"loss {_signed(one.loss)} ({_signed(one.low)} to {_signed(one.high)}){against}: "
        f"{one.num_lost:,} lost, {one.num_won:,} won of {count(one.num_pairs, 'pair')}{clusters}{mcnemar}"
    )


def _review(row: Disagreement) -> str:
    task = f"{plain(row.task)}/" if row.task else ""
    second = "" if row.noise is None else f", {row.noise}"
    why = "" if row.reason is None else f" ({plain(row.reason)})"
    return (
        f"{row.kind}: {plain(row.variant)}: {task}{plain(row.id)}: {row.baseline}{second} before, "
        f"{row.candidate} now{why}"
    )


def _signed(share: float) -> str:
    return f"{100 * share:+.3g} %" if share else "0"


def rate_in_words(rate: Rate) -> str:
    """Return a share with its interval; an end that too few requests give is left out."""
    high = "" if rate.high is None else f" to {percent(rate.high)}"
    return f"{percent(rate.value)} ({percent(rate.low)}{high})"
