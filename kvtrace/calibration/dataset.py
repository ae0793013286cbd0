"""Which rows of which requests a calibration uses, and which it holds out to be judged on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.calibration.magnitudes import NOT_SELECTED, TraceSelection
from kvtrace.calibration.manifest import PROMPT_DIGITS, ManifestCell, ManifestPrompts, ManifestRows
from kvtrace.errors import InputError
from kvtrace.plain_text import plain
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.format import RequestRecord
    from kvtrace.trace.reader import Trace

CALIBRATION: Final = 0
HELD_OUT: Final = 1


@dataclass(frozen=True, slots=True)
class DatasetRules:
    """Restrictions of a calibration; they hold for the held-out rows as well."""

    workloads: tuple[str, ...] = ()
    """Empty: all, less the held-out ones."""
    max_position: int | None = None
    """Rows at positions below this."""
    phase: str | None = None
    holdout: float = 0.0
    """Share of requests, by the seed."""
    holdout_workloads: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the rules. Raises InputError."""
        if not 0 <= self.holdout < 1:
            raise InputError(
                f"holdout is {self.holdout:g}, expected a share of the requests from 0 to below 1"
            )
        if self.phase is not None and self.phase not in PHASES:
            raise InputError(f"phase is {self.phase!r}, expected {' or '.join(PHASES)}")
        both = set(self.workloads) & set(self.holdout_workloads)
        if both:
            raise InputError(f"workload {plain(min(both))!r} is both calibrated on and held out")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Traces with every token's side, and the two sides' contents."""

    sources: tuple[TraceSelection, ...]
    calibration: ManifestRows
    held_out: ManifestRows | None
    duplicates_comparable: bool
    """False: traces hash prompts with different keys, so equal prompts across them go unseen."""


def split_dataset(traces: Sequence[Trace], rules: DatasetRules) -> Dataset:
    """Return each token's side: calibration, held out, or neither.

    Requests with the same prompt hash go to the same side of a random split.
    Raises InputError: nothing to calibrate on or to hold out, an unknown workload, or a held-out workload
    that shares prompts with the calibration.
    """
    _check_workloads(traces, rules)
    sources = tuple(
        TraceSelection(trace, _selection_of_token(trace, number, rules))
        for number, trace in enumerate(traces)
    )
    _refuse_duplicates(sources)
    calibration = _part(sources, CALIBRATION, rules.max_position)
    held_out = _part(sources, HELD_OUT, rules.max_position)
    asked = rules.holdout > 0 or bool(rules.holdout_workloads)
    if not calibration.num_tokens:
        raise InputError(
            "no row is left to calibrate on; loosen --workload, --max-position, --phase or --holdout"
        )
    if asked and not held_out.num_tokens:
        raise InputError("no row is held out; give a larger --holdout, or traces with more requests")
    keys = {trace.record.privacy.key_id for trace in traces}
    return Dataset(sources, calibration, held_out if asked else None, len(keys) == 1)


def calibrated_prompts(dataset: Dataset) -> ManifestPrompts | None:
    """Return the keyed hashes of the prompts calibrated on; None: the traces are under different keys."""
    keys = {source.trace.record.privacy.key_id for source in dataset.sources}
    if len(keys) > 1:
        return None
    found = [
        source.trace.requests[request].prompt_hash
        for source in dataset.sources
        for request in np.unique(
            source.trace.tokens.request[source.selection_of_token == CALIBRATION]
        ).tolist()
    ]
    hashes = {one[:PROMPT_DIGITS] for one in found if one is not None}
    return ManifestPrompts(key_id=min(keys), hashes=tuple(sorted(hashes)), num_without_hash=found.count(None))


def _check_workloads(traces: Sequence[Trace], rules: DatasetRules) -> None:
    known = {request.workload for trace in traces for request in trace.requests.values()}
    for workload in (*rules.workloads, *rules.holdout_workloads):
        if workload not in known:
            names = ", ".join(plain(name) for name in sorted(known))
            raise InputError(f"no request has workload {plain(workload)!r}; there are {names}")


def _selection_of_token(trace: Trace, number: int, rules: DatasetRules) -> NDArray[np.int64]:
    tokens = trace.tokens
    side = {request: _side(record, number, rules) for request, record in trace.requests.items()}
    requests = np.array(sorted(side), dtype=np.int64)
    sides = np.array([side[request] for request in requests.tolist()], dtype=np.int64)
    selection = sides[np.searchsorted(requests, tokens.request)] if len(requests) else np.empty(0, np.int64)
    kept = np.ones(len(tokens), dtype=bool)
    if rules.max_position is not None:
        kept &= tokens.position < rules.max_position
    if rules.phase is not None:
        kept &= tokens.phase == PHASES.index(rules.phase)
    return np.where(kept, selection, NOT_SELECTED)


def _side(record: RequestRecord, trace_number: int, rules: DatasetRules) -> int:
    if record.workload in rules.holdout_workloads:
        return HELD_OUT
    if rules.workloads and record.workload not in rules.workloads:
        return NOT_SELECTED
    if rules.holdout == 0:
        return CALIBRATION
    # By prompt, so that a repeated prompt never stands on both sides; a request without a hash stands alone.
    name = record.prompt_hash or f"{trace_number}:{record.request}"
    words = np.frombuffer(f"{rules.seed}\0{name}".encode(), dtype=np.uint8).astype(np.uint32)
    draw = np.random.default_rng(words).random()
    return HELD_OUT if draw < rules.holdout else CALIBRATION


def _refuse_duplicates(sources: Sequence[TraceSelection]) -> None:
    hashes: dict[int, set[str]] = {CALIBRATION: set(), HELD_OUT: set()}
    for source in sources:
        for side, found in hashes.items():
            for request in np.unique(source.trace.tokens.request[source.selection_of_token == side]).tolist():
                prompt_hash = source.trace.requests[request].prompt_hash
                if prompt_hash:
                    found.add(prompt_hash)
    both = hashes[CALIBRATION] & hashes[HELD_OUT]
    if both:
        raise InputError(
            f"{len(both)} prompts are in the calibration and held out as well (prompt hash "
            f"{min(both)[:12]}…), so the evaluation would be of what was calibrated on; restrict --workload, "
            "or hold out another workload"
        )


def _part(sources: Sequence[TraceSelection], side: int, most: int | None) -> ManifestRows:
    tokens_of: dict[tuple[str, int, int], int] = {}
    requests_of: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
    max_position, records = -1, {}
    for number, source in enumerate(sources):
        tokens, requests = source.trace.tokens, source.trace.requests
        chosen = np.flatnonzero(source.selection_of_token == side)
        if not len(chosen):
            continue
        max_position = max(max_position, int(tokens.position[chosen].max()))
        keys = np.stack([tokens.request[chosen], tokens.phase[chosen], tokens.octave[chosen]], axis=1)
        unique, counts = np.unique(keys, axis=0, return_counts=True)
        for (request, phase, octave), count in zip(unique.tolist(), counts.tolist(), strict=True):
            records[number, request] = requests[request]
            cell = (requests[request].workload, phase, octave)
            tokens_of[cell] = tokens_of.get(cell, 0) + count
            requests_of.setdefault(cell, set()).add((number, request))
    return ManifestRows(
        num_requests=len(records),
        num_tokens=sum(tokens_of.values()),
        max_position=max_position,
        max_prompt_tokens=max((r.prompt_tokens for r in records.values()), default=0),
        max_output_tokens=max((r.output_tokens for r in records.values()), default=0),
        max_computed_tokens=_open_to_sampling(max_position, records.values(), most),
        cells=tuple(
            ManifestCell(
                workload=workload,
                phase=PHASES[phase],
                position_octave=octave,
                num_tokens=tokens_of[workload, phase, octave],
                num_requests=len(found),
            )
            for (workload, phase, octave), found in sorted(requests_of.items())
        ),
    )


def _open_to_sampling(max_position: int, requests: Iterable[RequestRecord], most: int | None) -> int:
    longest = max((max_position + 1, *(one.computed_tokens for one in requests)))
    return longest if most is None else min(longest, most)
