"""The sentences of a report on what ran, and on what each set of scales is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, decibel, percent, span
from kvtrace.plain_text import plain
from kvtrace.trace.cache_dtypes import quantized_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.report.sections import (
        CandidateSummary,
        LoadedScales,
        Report,
        Source,
    )

_NAME: Final = 24


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
        part = rules.request_fraction
        requests = "all requests" if part == 1 else f"{percent(part)} of the requests"
        yield f"{where}{stride} of {requests}"


def ended_statement(source: Source) -> str:
    """Return a sentence, after a blank, on rows that may be missing at a trace's end; else nothing."""
    if source.closed:
        return ""
    if source.running:
        return " Its engine still ran: what it stored later is not in here."
    return " It was not closed in order: its last rows may be missing."


def effect_statement(source: Source, scales: Sequence[LoadedScales]) -> str:
    """Return whether FP8 was in effect in a trace, and with which scales."""
    dtype = f"cache dtype {plain(source.kv_cache_dtype, 20)}"
    if source.cache_kind == "other":
        return (
            f"cache dtype {plain(quantized_names(source.cache_dtypes), 60)}: quantized, but not as static "
            "FP8. Every candidate with given scales is a what-if: what they would do to these values."
        )
    if source.cache_kind == "unquantized":
        return (
            f"{dtype}: no FP8 was in effect at capture. Every candidate is a what-if: what its scales "
            "would do to these values."
        )
    text = f"{dtype}: FP8 was in effect."
    known = {one.tensor: one for one in scales if one.min_effective_scale is not None}
    if not known:
        return text + " Its scales are not in this run."
    if _is_default(list(known.values())):
        return text + " Every effective scale is exactly 1.0: the engine's default, no calibrated scale."
    ranges = ", ".join(
        f"{tensor.upper()} {span(known[tensor].min_effective_scale, known[tensor].max_effective_scale)}"
        for tensor in sorted(known)
    )
    return f"{text} Effective scales: {ranges}."


def cache_bytes(candidate: CandidateSummary) -> str | None:
    """Return what one token takes, and the tokens in the budget where one is given; None: not known."""
    if candidate.bytes_per_token is None:
        return None
    held = candidate.tokens_in_budget
    return f"{candidate.bytes_per_token:,}" + ("" if held is None else f" ({held:,} tokens)")


def cache_bytes_statement(report: Report) -> str | None:
    """Return the sentence on what a token takes under each candidate; None where nothing is known."""
    listed = [one for one in report.candidates if one.candidate in report.shown]
    parts = [f"{plain(one.candidate, 40)} {size}" for one in listed if (size := cache_bytes(one))]
    if not parts:
        return None
    budget = f", and tokens in {report.budget_bytes:,} bytes" if report.budget_bytes else ""
    return f"Bytes a token{budget}, over the captured layers: {'; '.join(parts)}."


def candidate_statement(report: Report, candidate: CandidateSummary) -> str:
    """Return what a candidate is: where its scales come from, how they are applied, whether they ran."""
    origin = {
        "bf16": "the values as captured",
        "effective": "the scales that the engine used",
        "unit": "every scale 1.0, an engine's default",
        "online": "scales for every token and head, chosen while serving",
        "swept": "static scales made of these traces",
        "fresh": "static scales that just cover these traces",
        "format": plain(candidate.artifact, 100) if candidate.artifact else "every scale 1.0",
        "artifact": plain(candidate.artifact or "scales given as numbers", 100),
    }[candidate.kind]
    granularity = {"tensor": "per tensor", "attn_head": "per head"}.get(candidate.granularity or "")
    parts = [origin]
    if granularity and candidate.kind != "unit":
        parts.append(granularity)
    if candidate.engine:
        parts.append(f"{candidate.format} as {candidate.engine} writes it")
    text = ", ".join(parts) + "."
    if candidate.kind in ("online", "format") and not candidate.hypothetical:
        text += " It is what ran."
    for source in report.sources:
        scales = _comparable(report, source, candidate)
        if scales:
            where = f"In {plain(source.name, _NAME)} it" if len(report.sources) > 1 else "It"
            text += f" {where} {_loaded(scales)}"
    if _is_written_otherwise(report, candidate):
        text += " The captured engine wrote its cache in another way."
    return text + (f" Note: {plain(candidate.note, 400)}" if candidate.note else "")


def _comparable(report: Report, source: Source, candidate: CandidateSummary) -> list[LoadedScales]:
    """Return an artifact's scales in one trace, K and V, if there are effective ones to compare with."""
    scales = [
        one for one in report.loaded if (one.source, one.candidate) == (source.name, candidate.candidate)
    ]
    known = any(one.num_as_effective is not None for one in scales)
    return scales if known and candidate.kind == "artifact" else []


def _is_what_ran(scales: Sequence[LoadedScales]) -> bool:
    return all(one.num_as_effective == one.num_scales for one in scales)


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
        return f"was not loaded: the engine used 1.0, and {differ}."
    return f"is not what ran: {total - same:,} of its {count(total, 'scale')} differ from the effective ones."
