"""Harm in words, the same in every output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times, two_digits
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from kvtrace.report.harm.model import CandidateHarm, Harm, Knowledge

MEASURED_IN: Final[dict[Knowledge, str]] = {
    "residual": "share of the residual stream, summed over layers",
    "projected": "squared error over attention's output, summed over layers",
    "heads": "squared error over attention's output, mean of query heads",
}
"""What a number of harm is."""
LACKING: Final[dict[Knowledge, str | None]] = {
    "residual": None,
    "projected": "Harm is relative to attention's output only: the trace holds no residual stream.",
    "heads": "Harm is relative to attention's output only; give --checkpoint.",
}
MOSTLY: Final = 0.5
HARDLY: Final = 0.1
"""Shares of the harm that fresh scales would remove: from the first on it is the scales, up to the second
it is not."""
_MOST_LAYERS: Final = 3


def harm_figure(harm: Harm, value: float | None) -> str:
    """Return a value of harm: a percentage where it is a share, else a number of two digits."""
    if value is None or harm.knowledge == "residual":
        return percent(value)
    return "0" if value == 0 else two_digits(value)


def harm_sentence(harm: Harm, one: CandidateHarm) -> str:
    """Return how much harm a candidate does, and how much fresh scales would leave."""
    amount = f"harm {harm_figure(harm, one.harm)}"
    if harm.knowledge == "residual":
        amount += " of the residual stream"
    if one.harm_low is not None and one.harm_high is not None:
        amount += f" ({harm_figure(harm, one.harm_low)} to {harm_figure(harm, one.harm_high)})"
    if one.kind == "fresh" or one.ratio is None:
        return amount
    return f"{amount}, {times(one.ratio)} that of fresh scales"


def causes_sentence(one: CandidateHarm) -> str | None:
    """Return whose the error is; None: there is none."""
    if one.k_share is None:
        return None
    of_q = f", Q's {percent(one.q_share)}" if one.q_share else ""
    return f"K's share {percent(one.k_share)}, V's {percent(one.v_share)}{of_q}"


def drift_share(one: CandidateHarm) -> float | None:
    """Return which share of the harm fresh scales would remove; None: not told apart, or there is none."""
    return one.drift / one.harm if one.drift is not None and one.harm else None


def diagnoses_sentence(harm: Harm, one: CandidateHarm) -> str | None:
    """Return calibration drift and misranking, side by side; None: they were not told apart."""
    if harm.knowledge != "residual" or one.drift is None or one.distortion is None:
        return None
    return (
        f"drift {harm_figure(harm, one.drift)} (fresh scales remove it), misranking "
        f"{harm_figure(harm, one.distortion)} (the format's own); the largest logit is another key's at "
        f"{percent(one.flipped_frac)} of queries"
    )


def layers_sentence(harm: Harm, one: CandidateHarm) -> str | None:
    """Return the layers that add most, and the others together; None: there is no harm."""
    layers = [layer for layer in harm.layers if layer.candidate == one.candidate and layer.harm]
    if not layers:
        return None
    first = sorted(layers, key=lambda layer: -(layer.harm or 0))[:_MOST_LAYERS]
    named = [f"{layer.layer}: {harm_figure(harm, layer.harm)}" for layer in first]
    rest = [layer for layer in layers if layer not in first]
    if rest:
        others = "other" if len(rest) == 1 else "others"
        named.append(f"{len(rest)} {others}: {harm_figure(harm, sum(layer.harm or 0 for layer in rest))}")
    head = first[0]
    return (
        f"layers {', '.join(named)}; in layer {head.layer} query head {head.query_head} has "
        f"{percent(head.query_head_share)} of the error"
    )


def strata_sentences(harm: Harm) -> list[str]:
    """Return harm by workload, by position and by generated token, where there are several of these."""
    parts = (
        ("by workload", [one for one in harm.strata if one.workload is not None]),
        ("by position", [one for one in harm.strata if one.position_from is not None]),
        ("by generated token", [one for one in harm.strata if one.step_from is not None]),
    )
    return [
        f"{title}: " + ", ".join(f"{_place(one)} {harm_figure(harm, one.harm)}" for one in listed)
        for title, listed in parts
        if len(listed) > 1
    ]


def _place(one: CandidateHarm) -> str:
    if one.workload is not None:
        return plain(one.workload, 40)
    if one.position_from is not None:
        return f"from {one.position_from:,}"
    return f"from {one.step_from:,}" if one.step_from else "prompt"
