"""Where: the part of the traffic in which values left the range, named in verdict and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from incidents.answers import OF_LANGUAGES, Answer, planted, sound
from incidents.bench import Bench, times
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.findings.finding import Where

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _tensor(bench: Bench) -> str:
    return str(bench.rng.choice(["k", "v"]))


def _grown(
    bench: Bench, rows: NDArray[np.bool_], where: Where, *ids: str, low: float = 2.5, high: float = 4
) -> Answer:
    """Ship scales that fit, then let some heads' K or V grow in these rows."""
    bench.ship(bench.scales())
    return _outgrown(bench, rows, where, *ids, low=low, high=high)


def _outgrown(
    bench: Bench, rows: NDArray[np.bool_], where: Where, *ids: str, low: float = 2.5, high: float = 4
) -> Answer:
    factor, tensor = bench.between(low, high), _tensor(bench)
    heads = bench.pick(min(6, len(bench.heads)))
    for layer, head in heads:
        scale_to_range(bench, layer, head, tensor, rows, factor)
    return Answer(
        strength=f"{tensor.upper()} of {len(heads)} heads × {factor:.2f}, {rows.mean():.0%} of rows",
        first=ids,
        beside=("outside-envelope",),
        tensor="k" if tensor == "k" else "v",
        layers=frozenset(layer for layer, _ in heads),
        where=where,
        remedies=("recalibrate",),
    )


def scale_to_range(
    bench: Bench, layer: int, head: int, tensor: str, rows: NDArray[np.bool_], factor: float
) -> None:
    """Multiply a head's values in these rows so that they reach `factor` times the head's range."""
    values = bench.tensors[layer, tensor][:, head]
    values[rows] *= np.float32(factor * np.abs(values).max() / np.abs(values[rows]).max())


def _octave(bench: Bench, least: float, most: float) -> int:
    """Return a position at which an octave begins, with such a share of the rows before it."""
    begins = [2**n for n in range(4, 12)]
    share = {begin: float((bench.position < begin).mean()) for begin in begins}
    chosen = [begin for begin in begins if least <= share[begin] <= most]
    middle = (least + most) / 2
    return int(bench.rng.choice(chosen or [min(begins, key=lambda begin: abs(share[begin] - middle))]))


@planted(3, "the first positions outgrew their scales")
def _(bench: Bench) -> Answer:
    end = _octave(bench, 0.05, 0.4)
    return _grown(bench, bench.position < end, Where("position", (), 0, end), "drift-position")


@planted(3, "prefill alone outgrew its scales")
def _(bench: Bench) -> Answer:
    return _grown(bench, bench.step < 0, Where("phase", ("prefill",)), "drift-phase")


@planted(3, "decode alone outgrew its scales")
def _(bench: Bench) -> Answer:
    rows = bench.step >= 0
    return _grown(bench, rows, Where("phase", ("decode",)), "drift-phase", "drift-output-length")


@planted(3, "a band of positions outgrew its scales")
def _(bench: Bench) -> Answer:
    first, end = _octave(bench, 0.15, 0.4), _octave(bench, 0.55, 0.85)
    rows = (bench.position >= first) & (bench.position < end)
    return _grown(bench, rows, Where("position", (), first, end), "drift-position")


@planted(3, "values outgrew their scales beyond a position")
def _(bench: Bench) -> Answer:
    first = _octave(bench, 0.6, 0.95)
    return _grown(bench, bench.position >= first, Where("position", (), first), "drift-position")


@planted(3, "values outgrew their scales past a step")
def _(bench: Bench) -> Answer:
    first = int(bench.rng.choice([31, 63]))
    where = Where("output-length", (), first)
    return _grown(bench, bench.step >= first, where, "drift-output-length")


def _languages(bench: Bench, count: int) -> Answer:
    """English alone was calibrated on, and `count` of the four others drift."""
    bench.calibrated(Recipe(headroom=1.3), DatasetRules(workloads=("english",)))
    others = sorted(set(bench.workload) - {"english"})
    names = tuple(sorted(bench.rng.choice(others, size=count, replace=False).tolist()))
    where = Where("workload", tuple(bench.called(name) for name in names))
    rows = np.isin(bench.workload.astype(str), names)
    return _outgrown(bench, rows, where, "drift-workload", low=3.5, high=6)


@planted(3, "2 of 5 languages drift, English alone was calibrated", OF_LANGUAGES)
def _(bench: Bench) -> Answer:
    return _languages(bench, 2)


@planted(3, "3 of 5 languages drift, English alone was calibrated", OF_LANGUAGES)
def _(bench: Bench) -> Answer:
    return _languages(bench, 3)


@planted(3, "one workload outgrew its scales so far that whole heads do")
def _(bench: Bench) -> Answer:
    name = str(bench.rng.choice(sorted(set(bench.workload))))
    where = Where("workload", (bench.called(name),))
    return _grown(bench, bench.workload == name, where, "drift-workload", low=6, high=12)


@planted(3, "decode outgrew its scales so far that whole heads do")
def _(bench: Bench) -> Answer:
    where = Where("phase", ("decode",))
    rows = bench.step >= 0
    return _grown(bench, rows, where, "drift-phase", "drift-output-length", low=6, high=12)


@planted(3, "heads clip alike everywhere")
def _(bench: Bench) -> Answer:
    tensor, factor = _tensor(bench), bench.between(3, 6)
    heads = bench.pick(min(5, len(bench.heads)))
    bench.ship(times(bench.scales(), 1 / factor, tensor, heads))
    return Answer(
        strength=f"{tensor.upper()} of {len(heads)} heads ÷ {factor:.2f}",
        first=(f"{tensor}-clips",),
        tensor="k" if tensor == "k" else "v",
        layers=frozenset(layer for layer, _ in heads),
        remedies=("recalibrate",),
    )


@sound(3, "the first positions are wider, covered")
def _(bench: Bench) -> str:
    factor = bench.between(2, 8)
    bench.scale_values(factor, bench.position < 128, bench.heads)
    bench.ship(bench.scales())
    return f"× {factor:.1f}"


@sound(3, "languages of different range, covered", OF_LANGUAGES)
def _(bench: Bench) -> str:
    for name in sorted(set(bench.workload)):
        bench.scale_values(bench.between(1, 6), bench.workload == name, bench.heads)
    bench.ship(bench.scales())
    return "× 1 to 6"


@sound(3, "decode is wider, covered")
def _(bench: Bench) -> str:
    factor = bench.between(2, 8)
    bench.scale_values(factor, bench.step >= 0, bench.heads)
    bench.ship(bench.scales(Recipe(granularity="tensor")))
    return f"× {factor:.1f}"
