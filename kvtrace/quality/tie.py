"""Lost answers and the heads that clip on their requests: the one function behind `kvtrace quality tie`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.join import join_to_trace
from kvtrace.outcomes.table import all_rows
from kvtrace.plain_text import plain
from kvtrace.quality.pairs import by_variant, cluster_of
from kvtrace.quality.signals import compare_signals, read_counts
from kvtrace.quality.tied import LostAnswer, QualityTie, Signal, Tensor, TieVerdict
from kvtrace.query import connect_with_views

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.outcomes.outcome import Outcome
    from kvtrace.outcomes.table import OutcomeTable
    from kvtrace.quality.pairs import Answers, PairKey
    from kvtrace.quality.signals import Counts
    from kvtrace.runs.open import Run
    from kvtrace.trace.reader import Trace

MIN_UNITS: Final = 5
"""Of lost and of kept answers; with fewer, chance parts them too easily."""
MIN_VECTORS: Final = 20
"""Of a request, K and V together; a share of fewer says little."""
_MOST_LOST: Final = 1_000
_TENSORS: Final[tuple[Tensor, ...]] = ("k", "v")


@dataclass(slots=True)
class _Sorted:
    """Answers that the baseline passed, by cluster; a cluster is lost if one of its answers is."""

    lost: dict[tuple[str, ...], list[tuple[Outcome, tuple[int, ...]]]]
    kept: dict[tuple[str, ...], list[tuple[Outcome, tuple[int, ...]]]]
    num_noise: int = 0
    num_not_captured: int = 0


def tie_quality(
    tables: Sequence[OutcomeTable],
    trace: Trace,
    run: Run,
    *,
    candidate: str | None = None,
    variant: str | None = None,
    baseline: str = "bf16-a",
    noise: str = "bf16-b",
    confidence: float = 0.95,
) -> QualityTie:
    """Return which counts of `run` under `candidate` tell the answers that `variant` lost from those it kept.

    trace: that the run was made of and whose requests the answers join with; it may be a capture in BF16.
    candidate, variant: may be left out where there is one. Raises OutcomesError: one of them has to be
    chosen or is absent, the run is of another trace, or the answers do not join.
    """
    variants = by_variant(all_rows(tables))
    if baseline not in variants:
        raise OutcomesError(f"{tables[0].path}: has no answers of the baseline {plain(baseline)}")
    others = [name for name in variants if name not in (baseline, noise)]
    variant = _chosen("--variant", variant, others, str(tables[0].path))
    before = variants[baseline]
    joined = join_to_trace(before.values(), tables[0], trace)
    sources = [one.name for one in run.record.sources if one.trace_id == trace.record.trace_id]
    if not sources:
        raise OutcomesError(f"{run.path}: was not made of {trace.path}; replay that trace first")
    connection = connect_with_views(run, large_on_all_cores=True)
    valid = "SELECT candidate FROM quantizing WHERE status = 'valid' ORDER BY ordinal"
    known = [str(name) for (name,) in connection.execute(valid).fetchall()]
    candidate = _chosen("--candidate", candidate, known, str(run.path))
    counts = read_counts(connection, candidate, sources[0])
    found = _sorted(before, variants[variant], variants.get(noise), joined.requests_of, counts)
    signals, num_signals, verdict = _signals(found, counts, confidence)
    return QualityTie(
        verdict=verdict,
        tables=tuple(str(one.path) for one in tables),
        trace=str(trace.path),
        run=str(run.path),
        candidate=candidate,
        variant=variant,
        baseline=baseline,
        num_answers=joined.num_answers,
        num_joined=len(joined.requests_of),
        num_lost=len(found.lost),
        num_kept=len(found.kept),
        num_lost_by_noise=found.num_noise,
        num_not_captured=found.num_not_captured,
        num_signals=num_signals,
        confidence=confidence,
        signals=signals,
        lost=_lost(found, counts),
    )


def _chosen(option: str, given: str | None, known: Sequence[str], where: str) -> str:
    if given in known:
        return str(given)
    if given is None and len(known) == 1:
        return known[0]
    named = ", ".join(map(plain, known[:8])) or "none"
    raise OutcomesError(f"{where}: has {named}; choose one of them with {option}")


def _sorted(
    before: Answers,
    after: Answers,
    again: Answers | None,
    requests_of: Mapping[PairKey, tuple[int, ...]],
    counts: Counts,
) -> _Sorted:
    found = _Sorted({}, {})
    for key, row in before.items():
        other = after.get(key)
        if other is None or other.outcome == "unjudged" or not row.passed:
            continue
        if again is not None and key in again and not again[key].passed:
            found.num_noise += not other.passed
            continue
        requests = tuple(one for one in requests_of.get(key, ()) if counts.num_vectors(one) >= MIN_VECTORS)
        if not requests:
            found.num_not_captured += 1
            continue
        side = found.kept if other.passed else found.lost
        side.setdefault(cluster_of(row), []).append((row, requests))
    for cluster in found.lost.keys() & found.kept.keys():
        del found.kept[cluster]
    return found


def _signals(found: _Sorted, counts: Counts, confidence: float) -> tuple[tuple[Signal, ...], int, TieVerdict]:
    if not (found.lost and found.kept):
        return (), 0, TieVerdict.too_few
    units = [
        tuple(dict.fromkeys(one for _, requests in answers for one in requests))
        for side in (found.lost, found.kept)
        for answers in side.values()
    ]
    is_lost = np.arange(len(units)) < len(found.lost)
    signals, num_signals = compare_signals(counts, units, is_lost, confidence)
    if min(len(found.lost), len(found.kept)) < MIN_UNITS:
        return signals, num_signals, TieVerdict.too_few
    tells = any(one.p_value <= 1 - confidence for one in signals)
    return signals, num_signals, TieVerdict.goes_with if tells else TieVerdict.nothing


def _lost(found: _Sorted, counts: Counts) -> tuple[LostAnswer, ...]:
    all_shares = np.array(
        [
            max(_clipped(counts, requests, tensor) for tensor in _TENSORS)
            for side in (found.lost, found.kept)
            for answers in side.values()
            for _, requests in answers
        ]
    )
    rows = [
        _lost_answer(row, requests, counts, all_shares)
        for answers in found.lost.values()
        for row, requests in answers
    ]
    return tuple(sorted(rows, key=lambda one: (one.rank, one.task, one.id, one.repetition))[:_MOST_LOST])


def _lost_answer(
    row: Outcome,
    requests: tuple[int, ...],
    counts: Counts,
    all_shares: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> LostAnswer:
    tensor = max(_TENSORS, key=lambda one: _clipped(counts, requests, one))
    share = _clipped(counts, requests, tensor)
    worst = max((counts.whole[one, tensor] for one in requests), key=lambda one: one.clipped)
    return LostAnswer(
        id=row.id,
        task=row.task,
        repetition=row.repetition,
        requests=requests,
        tensor=tensor,
        vectors_clipped_frac=share,
        vectors_out_of_range_frac=float(
            np.mean([counts.whole[one, tensor].out_of_range for one in requests])
        ),
        rank=1 + int(np.sum(all_shares > share)),
        num_ranked=len(all_shares),
        worst_layer=worst.worst_layer,
        worst_kv_head=worst.worst_kv_head,
    )


def _clipped(counts: Counts, requests: Sequence[int], tensor: Tensor) -> float:
    return float(
        np.mean(
            [counts.whole[one, tensor].clipped if (one, tensor) in counts.whole else 0.0 for one in requests]
        )
    )
