"""The sentences of a report: which heads leave the range under which candidate and where, and what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, decibel, number, percent, span
from kvtrace.plain_text import plain
from kvtrace.trace.cache_dtypes import quantized_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.finding import Finding
    from kvtrace.report.sections import (
        CandidateSummary,
        Head,
        LoadedScales,
        Place,
        Report,
        Source,
        TensorTotals,
    )

_NAME: Final = 24


def candidate_answer(report: Report, candidate: CandidateSummary) -> str:
    """Return whether one candidate is what ran, and what becomes of the values under it."""
    return _short_loaded(report, candidate) + _range_answer(report, candidate)


def _range_answer(report: Report, candidate: CandidateSummary) -> str:
    if candidate.status == "invalid":
        return f"INVALID, not scored: {plain(candidate.reason or 'no reason recorded', 400)}"
    if candidate.kind == "bf16":
        return "not quantized, so nothing leaves the range."
    beyond = [total for total in candidate.tensors if total.num_heads_out_of_range]
    heads = sum(total.num_heads for total in candidate.tensors)
    if not beyond:
        return f"in range: no value of {count(heads, 'head')} (K and V counted apart) leaves it."
    worst = _described(report, candidate, max(beyond, key=lambda total: total.worst_clipped_frac or 0))
    if not any(total.num_heads_clipped for total in beyond):
        return (
            f"nothing clipped. Values of {_heads(candidate, clipped=False)} exceed MAX × scale by less than "
            f"the rounding step: they become MAX, which is harmless. Most: {worst}"
        )
    return f"CLIPS in {_heads(candidate, clipped=True)}. Worst: {worst}"


def captured_amount(report: Report) -> str:
    """Return how many tokens of how many requests were captured."""
    tokens = sum(one.num_prefill_tokens + one.num_decode_tokens for one in report.captured)
    return f"{count(tokens, 'token')} of {captured_requests(report)}"


def captured_requests(report: Report) -> str:
    """Return how many requests were captured."""
    return count(sum(one.num_captured_requests for one in report.captured), "request")


def rounding_floors(report: Report) -> list[str]:
    """Return a sentence on what rounding alone leaves for each format and engine."""
    floors = {
        (one.format, one.engine): one.rounding_floor_db
        for one in report.candidates
        if one.rounding_floor_db is not None
    }
    return [
        f"Rounding alone leaves about {decibel(floor)} dB in {fp8_format} as {engine} writes it: near that, "
        "no scale can do better."
        for (fp8_format, engine), floor in floors.items()
    ]


def sampling_rules(report: Report, name_length: int) -> Iterator[str]:
    """Yield what was sampled, a sentence without its full stop for each trace and set of rules."""
    for rules in report.sampling:
        stride = "every position" if rules.position_stride == 1 else f"1 in {rules.position_stride} positions"
        where = f"{plain(rules.source, name_length)}: " if len(report.sources) > 1 else ""
        yield f"{where}{stride} of {percent(rules.request_fraction)} of the requests"


def decisive_finding(report: Report) -> Finding | None:
    """Return the finding that the verdict rests on; None where nothing was judged."""
    place = report.verdict.finding
    return None if place is None else report.findings[place]


def effect_statement(source: Source, scales: Sequence[LoadedScales]) -> str:
    """Return whether FP8 was in effect in a trace, and with which scales."""
    dtype = f"cache dtype {plain(source.kv_cache_dtype, 20)}"
    if source.cache_kind == "other":
        return (
            f"cache dtype {plain(quantized_names(source.cache_dtypes), 60)}: quantized, but NOT as static "
            "FP8, so every candidate with given scales is hypothetical: what they would do to these values."
        )
    if source.cache_kind == "unquantized":
        return (
            f"{dtype}: NO FP8 was in effect at capture, so every candidate is hypothetical: what its scales "
            "would do to these values."
        )
    text = f"{dtype}: FP8 was in effect."
    known = {one.tensor: one for one in scales if one.min_effective_scale is not None}
    if not known:
        return text + " Its scales are not in this run."
    if _is_default(list(known.values())):
        return text + " EVERY effective scale is exactly 1.0: the engine's default, no calibrated scale."
    ranges = ", ".join(
        f"{tensor.upper()} {span(known[tensor].min_effective_scale, known[tensor].max_effective_scale)}"
        for tensor in sorted(known)
    )
    return f"{text} Effective scales: {ranges}."


def candidate_statement(report: Report, candidate: CandidateSummary) -> str:
    """Return what a candidate is: where its scales come from, how they are applied, whether they ran."""
    origin = {
        "bf16": "the values as captured",
        "effective": "the scales that the engine used",
        "unit": "every scale 1.0, an engine's default",
        "online": "a scale for every token and head, chosen while serving",
        "artifact": plain(candidate.artifact or "scales given as numbers", 100),
    }[candidate.kind]
    granularity = {"tensor": "per tensor", "attn_head": "per head"}.get(candidate.granularity or "")
    parts = [origin]
    if granularity and candidate.kind != "unit":
        parts.append(granularity)
    if candidate.engine:
        parts.append(f"{candidate.format} as {candidate.engine} writes it")
    text = ", ".join(parts) + "."
    if candidate.kind == "online" and not candidate.hypothetical:
        text += " It is what ran."
    for source in report.sources:
        scales = _comparable(report, source, candidate)
        if scales:
            where = f"In {plain(source.name, _NAME)} it" if len(report.sources) > 1 else "It"
            text += f" {where} {_loaded(scales)}"
    if _is_written_otherwise(report, candidate):
        text += " The captured engine wrote its cache in another way."
    return text + (f" Note: {plain(candidate.note, 400)}" if candidate.note else "")


def _short_loaded(report: Report, candidate: CandidateSummary) -> str:
    """Return a sentence on whether the artifact or the policy ran, or nothing where that cannot be."""
    if candidate.kind == "online" and not candidate.hypothetical:
        return "Is what ran. "
    compared = [scales for source in report.sources if (scales := _comparable(report, source, candidate))]
    if not compared:
        return ""
    if all(_is_what_ran(scales) for scales in compared):
        return "Its scales ran. " if _is_written_otherwise(report, candidate) else "Is what ran. "
    return "Was NOT LOADED. " if all(_is_default(scales) for scales in compared) else "Is NOT what ran. "


def _comparable(report: Report, source: Source, candidate: CandidateSummary) -> list[LoadedScales]:
    """Return an artifact's scales in one trace, K and V, if there are effective ones to compare with."""
    scales = [
        one for one in report.loaded if (one.source, one.candidate) == (source.name, candidate.candidate)
    ]
    known = any(one.num_as_effective is not None for one in scales)
    return scales if known and candidate.kind == "artifact" else []


def _is_what_ran(scales: Sequence[LoadedScales]) -> bool:
    return all(one.num_as_effective == one.num_scales for one in scales)


def hypothetical_statement(report: Report, first: Finding) -> str:
    """Return that what a finding about heads says is not what ran; nothing where it is."""
    candidate = next((one for one in report.candidates if one.candidate == first.candidate), None)
    if candidate is None or not candidate.hypothetical or not (first.heads or first.id == "not-the-scales"):
        return ""
    if _is_written_otherwise(report, candidate):
        return (
            "The captured engine wrote its cache in another way: this is what "
            f"{plain(candidate.engine or '', _NAME)} in {plain(candidate.format or '', _NAME)} would do with "
            "its scales."
        )
    if _was_what_ran(report, candidate):
        return ""
    if any(source.cache_kind == "static_fp8" for source in report.sources):
        return "The captured engine used other scales: this is what these would do."
    others = {
        name for source in report.sources if source.cache_kind == "other" for name in source.cache_dtypes
    }
    if others:
        return (
            f"The captured cache was {plain(quantized_names(others), 60)}, not static FP8: this is what "
            "these scales would do."
        )
    return "No FP8 was in effect at capture: this is what these scales would do."


def _is_written_otherwise(report: Report, candidate: CandidateSummary) -> bool:
    """Return whether the scales ran, but with another engine's numerics, format or quantized layers."""
    if candidate.status == "invalid" or (
        candidate.kind != "effective" and not _was_what_ran(report, candidate)
    ):
        return False
    setup = (candidate.engine, candidate.format)
    return any(
        one.hypothetical
        for one in report.candidates
        if one.kind == "effective" and (one.engine, one.format) == setup
    )


def _was_what_ran(report: Report, candidate: CandidateSummary) -> bool:
    """Return whether an artifact's scales are the effective ones, but for what bf16 loses."""
    compared = [scales for source in report.sources if (scales := _comparable(report, source, candidate))]
    return bool(compared) and all(map(_is_what_ran, compared))


def _is_default(scales: Sequence[LoadedScales]) -> bool:
    return all(one.min_effective_scale == one.max_effective_scale == 1 for one in scales)


def _loaded(scales: Sequence[LoadedScales]) -> str:
    """Return whether one artifact's scales are those that ran; `scales`: its K and its V in one trace."""
    total = sum(one.num_scales for one in scales)
    same = sum(one.num_as_effective or 0 for one in scales)
    if _is_what_ran(scales):
        return f"is what ran: all {count(total, 'scale')} equal the effective ones."
    if _is_default(scales):
        differ = f"{total - same:,} of its {count(total, 'scale')} differ"
        return f"was NOT LOADED: the engine used 1.0, and {differ}."
    return f"is NOT what ran: {total - same:,} of its {count(total, 'scale')} differ from the effective ones."


def _heads(candidate: CandidateSummary, *, clipped: bool) -> str:
    """Return "3 of 90 K and 1 of 90 V heads"."""
    parts = [
        f"{total.num_heads_clipped if clipped else total.num_heads_out_of_range:,} of {total.num_heads:,} "
        f"{total.tensor.upper()}"
        for total in candidate.tensors
    ]
    return " and ".join(parts) + " heads"


def _described(report: Report, candidate: CandidateSummary, total: TensorTotals) -> str:
    """Return the worst head of K or of V, and where it is worst if the report lists it."""
    text = f"layer {total.worst_layer} head {total.worst_kv_head} {total.tensor.upper()}"
    if total.worst_clipped_frac:
        text += f", {percent(total.worst_clipped_frac)} of its values clipped"
    head = _listed(report, candidate, total)
    if head is None:
        return text + "."
    beyond = f"{percent(head.measured.out_of_range_frac)} out of range"
    text += f" ({beyond})" if total.worst_clipped_frac else f", {beyond}"
    if head.max_abs is not None and head.covered_amax is not None:
        text += f", largest {number(head.max_abs)} where {number(head.covered_amax)} is covered"
    places = [_place("at positions", head.worst_positions), _place("in", head.worst_workload)]
    found = [place for place in places if place]
    return text + (f"; most {' and '.join(found)}." if found else ".")


def _listed(report: Report, candidate: CandidateSummary, total: TensorTotals) -> Head | None:
    wanted = (candidate.candidate, total.tensor, total.worst_layer, total.worst_kv_head)
    for head in report.heads:
        if (head.candidate, head.tensor, head.layer, head.kv_head) == wanted:
            return head
    return None


def _place(preposition: str, place: Place | None) -> str | None:
    if place is None:
        return None
    share = place.clipped_frac or place.out_of_range_frac
    return f"{preposition} {plain(place.name, _NAME)} ({percent(share)})"
