"""The tables of the text report, each at most 80 columns wide."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from kvtrace.figures import decibel, percent, positions
from kvtrace.report.wording import padded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.report.sections import CandidateSummary, Captured, Head, Place, Stratum

_CANDIDATE: Final = 16
_WORKLOAD: Final = 14
_STRATUM: Final = 21


def candidate_table(candidates: Sequence[CandidateSummary]) -> Iterator[str]:
    """Yield a line per candidate and tensor."""
    yield f"  {'candidate':<{_CANDIDATE}} KV  out of range   clipped   flushed  SQNR  error by clipping"
    for candidate in candidates:
        name = padded(candidate.candidate, _CANDIDATE)
        if candidate.status == "invalid":
            yield f"  {name}     cannot be used: see below"
        elif candidate.kind == "bf16":
            yield f"  {name}     not quantized: nothing is lost"
        else:
            for total in candidate.tensors:
                measured = total.measured
                yield (
                    f"  {name} {total.tensor.upper():<2}"
                    f"{percent(measured.out_of_range_frac):>14}{percent(measured.clipped_frac):>10}"
                    f"{percent(measured.flushed_frac):>10}{decibel(measured.sqnr_db):>6}"
                    f"{percent(measured.clip_error_frac):>19}"
                )
                name = " " * _CANDIDATE


def head_table(heads: Sequence[Head], top: int) -> Iterator[str]:
    """Yield a line per head with a value out of range, K first; the first `top` by share of values."""
    yield "  KV layer head out of range  clipped  vectors  SQNR  most at       most in"
    for head in heads:
        if head.measured.num_out_of_range and head.rank <= top:
            measured = head.measured
            yield (
                f"  {head.tensor.upper():<2} {head.layer:>5} {head.kv_head:>4}"
                f"{percent(measured.out_of_range_frac):>13}{percent(measured.clipped_frac):>9}"
                f"{percent(measured.vectors_out_of_range_frac):>9}{decibel(measured.sqnr_db):>6}"
                f"  {_place(head.worst_positions, 13)} {_place(head.worst_workload, 12)}"
            ).rstrip()


def stratum_table(strata: Sequence[Stratum]) -> Iterator[str]:
    """Yield a line per position octave and phase, or per workload; K and V side by side."""
    yield f"  {'':<{_STRATUM}} requests tokens   K: all  in a head   V: all  in a head"
    for label, group in groupby(sorted(strata, key=_place_order), key=_label):
        here = {one.tensor: one for one in group}
        first = next(iter(here.values()))
        shares = "".join(
            f"{percent(here[tensor].measured.clipped_frac):>9}{_worst(here[tensor]):>11}"
            if tensor in here
            else " " * 20
            for tensor in ("k", "v")
        )
        coverage = f"{_amount(first.num_requests):>8}{_amount(first.num_tokens):>7}"
        yield f"  {padded(label, _STRATUM)} {coverage}{shares}".rstrip()


def captured_table(captured: Sequence[Captured]) -> Iterator[str]:
    """Yield a line per workload; several traces one after another."""
    several = len({one.source for one in captured}) > 1
    yield f"  {'workload':<{_WORKLOAD}} requests  prefill  decode  positions  missing  dropped  partial"
    for source, group in groupby(captured, key=lambda one: one.source):
        if several:
            yield f"  {padded(source, 60)}".rstrip()
        for one in group:
            last = "–" if one.max_position is None else f"0–{one.max_position:,}"
            requests = f"{one.num_captured_requests:,}/{one.num_requests:,}"
            yield (
                f"  {padded(one.workload, _WORKLOAD)}{requests:>9}{one.num_prefill_tokens:>9,}"
                f"{one.num_decode_tokens:>8,}{last:>11}{one.num_missing:>9,}{one.num_dropped:>9,}"
                f"{one.num_incomplete_requests:>9,}"
            )


def _amount(amount: int | None) -> str:
    return "–" if amount is None else f"{amount:,}"


def _place(place: Place | None, width: int) -> str:
    return padded("–" if place is None else place.name, width)


def _place_order(one: Stratum) -> tuple[bool, int, str]:
    return one.phase == "decode", one.position_from or 0, one.workload or ""


def _label(one: Stratum) -> str:
    if one.position_from is None or one.position_to is None:
        return one.workload or ""
    return f"{one.phase:<7} {positions(one.position_from, one.position_to)}"


def _worst(one: Stratum) -> str:
    """Return the worst head's share; nothing where it is the pooled one's zero."""
    return "" if one.num_heads_clipped == 0 else percent(one.worst_clipped_frac)
