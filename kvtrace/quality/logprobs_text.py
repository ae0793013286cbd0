"""What log-probabilities say, for people: lines on 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent
from kvtrace.plain_text import plain, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.quality.moved import Beyond, Divergence, LogprobComparison, Logprobs

_MODES: Final = {"forced": "the baseline's answers, scored", "free": "its own answers, until they differ"}


def logprobs_lines(found: LogprobComparison) -> Iterator[str]:
    """Yield the lines of a comparison of log-probabilities."""
    against = "noise not measured" if found.noise is None else f"noise: {plain(found.noise)}"
    yield f"LOG-PROBABILITIES   against {plain(found.baseline)}; {against}; nats a token"
    for one in found.modes:
        yield from _mode(one)
    for diverged in found.divergence:
        yield from wrapped(_divergence(diverged, is_noise=diverged.variant == found.noise), "  ", "    ")


def _mode(one: Logprobs) -> Iterator[str]:
    yield from wrapped(
        f"{plain(one.variant)}, {_MODES[one.mode]}: {count(one.num_steps, 'token')} of "
        f"{count(one.num_requests, 'request')}",
        "  ",
    )
    rows: list[tuple[str, Beyond, Callable[[float], str]]] = [
        ("mean |Δ|", one.abs_delta, _nats),
        ("mean Δ", one.delta, _nats),
    ]
    rows.append(("top-1 flips", one.flip_frac, percent))
    if one.kl is not None:
        rows.append(("KL, at least", one.kl, _nats))
    for name, value, write in rows:
        yield f"    {name:<13}{_beyond(value, write)}"
    yield f"    {'perplexity':<13}{one.perplexity:.4g}, baseline {one.baseline_perplexity:.4g}"


def _beyond(one: Beyond, write: Callable[[float], str]) -> str:
    if one.noise is None or one.excess is None:
        return f"{write(one.variant)}; noise not measured"
    ends = (
        "too few to tell" if one.low is None or one.high is None else f"{write(one.low)} to {write(one.high)}"
    )
    return f"{write(one.variant)}, noise {write(one.noise)}: excess {write(one.excess)} ({ends})"


def _divergence(one: Divergence, *, is_noise: bool) -> str:
    last = one.identical[-1] if one.identical else None
    share = "" if last is None else f"; after {count(last.steps, 'step')} {percent(last.frac)} still are"
    named = " (noise)" if is_noise else ""
    median = "half never diverge" if one.median_step is None else f"half diverge by step {one.median_step:,}"
    return (
        f"{plain(one.variant)}{named}: {one.num_identical:,} of {count(one.num_requests, 'answer')} are the "
        f"same to their end{share}; {median}"
    )


def _nats(value: float) -> str:
    return f"{value:.3g}"
