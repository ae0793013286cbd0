"""Useful answers by class, run and variant: the one function behind `kvtrace goodput`."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from scipy.stats import beta

from kvtrace.errors import OutcomesError
from kvtrace.plain_text import plain
from kvtrace.serving.count import count_run
from kvtrace.serving.engine_spans import engine_part
from kvtrace.serving.report import (
    ClassSpread,
    EnvelopePoint,
    Gain,
    GoodputReport,
    LengthDifference,
    VariantGoodput,
    VariantPair,
)
from kvtrace.serving.run_report import run_goodput
from kvtrace.serving.spread import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.serving.contract import Contract
    from kvtrace.serving.report import ClassGoodput, RunGoodput
    from kvtrace.serving.scrapes import Scrape
    from kvtrace.serving.table import RunRecord, ServingTable

    Lengths = Mapping[tuple[str, int], Mapping[bytes, int]]
_ALL = "all"


def useful_goodput(
    tables: Sequence[ServingTable], contract: Contract, *, baseline: str | None = None
) -> GoodputReport:
    """Return goodput of every run of the tables, and each other variant against `baseline`, run by run.

    baseline: None: nothing is compared. Runs pair by their number among their variant's, over all tables.
    Raises OutcomesError: a table is not what it should be, two hold runs of one variant, or no run is of the
    baseline.
    """
    runs: list[RunGoodput] = []
    records: list[RunRecord] = []
    lengths: dict[tuple[str, int], Mapping[bytes, int]] = {}
    limit_of: dict[str, int | None] = {}
    scrapes: dict[str, tuple[Scrape, ...]] = {}
    for table in tables:
        twice = {run.variant for run in table.runs} & {one.variant for one in runs}
        if twice:
            raise OutcomesError(
                f"{table.path}: another table has runs of {plain(min(twice))} too; make one table of all"
            )
        for record, rows in table.each_run():
            records.append(record)
            counted = count_run(record, rows, contract.serving)
            runs.append(run_goodput(record, counted, contract))
            if record.has_ids:
                lengths[record.variant, record.repetition] = counted.output_tokens
        scrapes |= table.scrapes
        limit_of |= {name: _admission_limit(one.effective_args) for name, one in table.manifests.items()}
    variants = list(dict.fromkeys(run.variant for run in runs))
    if baseline is not None and baseline not in variants:
        raise OutcomesError(
            f"{tables[0].path}: has runs of {', '.join(map(plain, variants))}; expected the baseline "
            f"{plain(baseline)}; --baseline names another"
        )
    return GoodputReport(
        tables=tuple(str(table.path) for table in tables),
        policy_name=contract.name,
        policy_date=contract.date,
        policy_sha256=contract.sha256,
        confidence=contract.confidence,
        interval_s=contract.serving.interval_s,
        drain_s=contract.serving.drain_s,
        currency=contract.cost and contract.cost.currency,
        gpus=contract.cost and contract.cost.gpus,
        runs=tuple(runs),
        variants=tuple(
            _variant(
                name,
                rate,
                runs,
                [one for one in records if (one.variant, one.rate) == (name, rate)],
                scrapes.get(name),
                contract,
            )
            for name, rate in _offered(runs)
        )
        + tuple(_unserved(tables, contract)),
        pairs=tuple(
            _pair(baseline, name, [run for run in runs if run.rate == rate], lengths, contract)
            for name, rate in _offered(runs)
            if baseline is not None and name != baseline
        ),
        envelope=tuple(_envelope(runs, limit_of, contract)),
    )


def _admission_limit(arguments: Mapping[str, object] | None) -> int | None:
    """Return `max_num_seqs` of an engine's settings, wherever they lie."""
    for held in (arguments or {}, (arguments or {}).get("scheduler_config")):
        value = held.get("max_num_seqs") if isinstance(held, dict) else None
        if type(value) is int and value > 0:
            return value
    return None


def _offered(runs: Sequence[RunGoodput]) -> list[tuple[str, float | None]]:
    """Return each variant and each rate that it was offered, in the order of the tables."""
    return list(dict.fromkeys((run.variant, run.rate) for run in runs))


def _variant(
    name: str,
    rate: float | None,
    runs: Sequence[RunGoodput],
    records: Sequence[RunRecord],
    scrapes: Sequence[Scrape] | None,
    contract: Contract,
) -> VariantGoodput:
    own = [run for run in runs if (run.variant, run.rate) == (name, rate)]
    used = [run for run in own if not run.problems]
    return VariantGoodput(
        variant=name,
        rate=rate,
        num_runs=len(own),
        num_used=len(used),
        classes=tuple(
            _spread(one, [_of(run, one) for run in used], contract.confidence)
            for one in contract.serving.classes
        ),
        all=_spread(_ALL, [run.all for run in used], contract.confidence),
        cost_per_accepted=spread(
            [run.cost_per_accepted for run in used if run.cost_per_accepted is not None], contract.confidence
        ),
        **engine_part(scrapes, records, contract.serving),
    )


def _unserved(tables: Sequence[ServingTable], contract: Contract) -> Iterator[VariantGoodput]:
    """Yield the variants whose manifest says why they cannot be served."""
    for table in tables:
        for name, manifest in table.manifests.items():
            if manifest.unsupported is not None:
                one = _variant(name, None, [], [], None, contract)
                yield one.model_copy(update={"unsupported": manifest.unsupported})


def _spread(name: str, parts: Sequence[ClassGoodput], confidence: float) -> ClassSpread:
    return ClassSpread(
        name=name,
        goodput=spread([one.goodput for one in parts if one.goodput is not None], confidence),
        accepted_frac=spread(
            [one.accepted_frac for one in parts if one.accepted_frac is not None], confidence
        ),
    )


def _of(run: RunGoodput, name: str) -> ClassGoodput:
    return run.all if name == _ALL else next(one for one in run.classes if one.name == name)


def _pair(
    baseline: str, candidate: str, runs: Sequence[RunGoodput], lengths: Lengths, contract: Contract
) -> VariantPair:
    before, after = (
        {run.repetition: run for run in runs if run.variant == name and not run.problems}
        for name in (baseline, candidate)
    )
    both = sorted(before.keys() & after.keys())
    return VariantPair(
        baseline=baseline,
        candidate=candidate,
        rate=runs[0].rate,
        num_pairs=len(both),
        classes=tuple(
            _gain(
                name, [(_of(before[one], name), _of(after[one], name)) for one in both], contract.confidence
            )
            for name in contract.serving.classes
        ),
        all=_gain(_ALL, [(before[one].all, after[one].all) for one in both], contract.confidence),
        output_tokens=_lengths(
            [
                (lengths[baseline, one], lengths[candidate, one])
                for one in both
                if (baseline, one) in lengths and (candidate, one) in lengths
            ],
            contract.confidence,
        ),
    )


def _gain(name: str, pairs: Sequence[tuple[ClassGoodput, ClassGoodput]], confidence: float) -> Gain:
    told = [
        (one.goodput, other.goodput)
        for one, other in pairs
        if one.goodput is not None
        and other.goodput is not None
        # What is not judged may be right: then goodput is a range, and a difference of its ends no gain.
        and one.goodput == one.goodput_most
        and other.goodput == other.goodput_most
    ]
    return Gain(
        name=name,
        difference=spread([other - one for one, other in told], confidence),
        baseline=mean(one for one, _ in told) if told else None,
    )


def _lengths(
    pairs: Sequence[tuple[Mapping[bytes, int], Mapping[bytes, int]]], confidence: float
) -> LengthDifference | None:
    differences = [
        float(after[key] - before[key]) for before, after in pairs for key in before.keys() & after.keys()
    ]
    found = spread(differences, confidence)
    if found is None:
        return None
    return LengthDifference(num_requests=found.num_runs, mean=found.mean, low=found.low, high=found.high)


def _envelope(
    runs: Sequence[RunGoodput], limit_of: Mapping[str, int | None], contract: Contract
) -> list[EnvelopePoint]:
    used = [run for run in runs if run.all.goodput is not None]
    points = []
    for variant, rate in sorted(_offered(used), key=lambda one: (one[0], one[1] or 0.0)):
        own = [run for run in used if (run.variant, run.rate) == (variant, rate)]
        accepted, offered = sum(run.all.accepted for run in own), sum(run.all.offered for run in own)
        low = low_end(accepted, offered, contract.confidence)
        least = contract.serving.min_accepted_frac
        points.append(
            EnvelopePoint(
                variant=variant,
                rate=rate,
                admission_limit=limit_of.get(variant),
                num_runs=len(own),
                goodput=mean(run.all.goodput for run in own if run.all.goodput is not None),
                accepted_frac_low=low,
                reaches=None if least is None else low >= least,
            )
        )
    return points


def low_end(events: int, trials: int, confidence: float) -> float:
    """Return Clopper and Pearson's low end, which treats requests as independent."""
    return 0.0 if not events else float(beta.ppf((1 - confidence) / 2, events, trials - events + 1))
