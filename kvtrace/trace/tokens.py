"""The sampled tokens of a trace: ranks joined on (request, position), repeated writes settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.trace.format import UNUSED_ROW
from kvtrace.trace.rejected import of_rejected_drafts
from kvtrace.trace.strata import phase_code, position_octave

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.format import RequestRecord
    from kvtrace.trace.store import RankStore


@dataclass(frozen=True, slots=True)
class Tokens:
    """One entry per sampled (request, position), sorted by both. All arrays are [num_tokens]."""

    request: NDArray[np.int32]
    position: NDArray[np.int32]
    sampling_id: NDArray[np.int32]
    phase: NDArray[np.int8]
    """`strata.PREFILL` or `strata.DECODE`."""
    octave: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.request)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """How the rows of every rank map to tokens."""

    tokens: Tokens
    token_of_row: tuple[NDArray[np.int64], ...]
    """Per rank, [stored rows]: index into `tokens`; -1 for a row that does not count."""
    num_superseded: int
    """Rows written again later (preemption, speculative decoding): the last write counts."""
    num_unknown: int
    """Rows whose request has no record: the record was lost with the engine."""
    num_beyond_end: int
    """Rows at positions that their finished request does not have (rejected drafts)."""
    num_rejected: int = 0
    """Rows of rejected drafts, or that may be, whose token has no row: they do not count."""


def join_ranks(
    stores: tuple[RankStore, ...], requests: dict[int, RequestRecord], num_drafts: int = 0
) -> JoinedRows:
    """Join the ranks' rows on (request, position); within a rank the last write of a token counts.

    num_drafts: `rejected.most_drafts` of the engine. Ranks drop rows independently, so a token may be absent
    on some of them.
    """
    known = _RequestLengths(requests)
    kept, superseded, unknown, beyond, num_rejected = [], 0, 0, 0, 0
    for store in stores:
        rows = store.rows
        used = rows["request"] != UNUSED_ROW
        is_known = used & known.contains(rows["request"])
        in_request = is_known & (rows["position"] < known.num_positions(rows["request"]))
        last = _last_writes(rows, in_request)
        unknown += int((used & ~is_known).sum())
        beyond += int((is_known & ~in_request).sum())
        superseded += int((in_request & ~last).sum())
        rejected = last & of_rejected_drafts(rows, requests, num_drafts)
        num_rejected += int(rejected.sum())
        kept.append(last & ~rejected & store.has_values)

    keys = [_token_key(store.rows) for store in stores]
    selected = [key[keep] for key, keep in zip(keys, kept, strict=True)]
    unique, first = np.unique(np.concatenate(selected or [np.empty(0, np.int64)]), return_index=True)
    sampling_ids = [s.rows["sampling_id"][keep] for s, keep in zip(stores, kept, strict=True)]
    request = (unique >> 32).astype(np.int32)
    position = (unique & 0xFFFFFFFF).astype(np.int32)
    tokens = Tokens(
        request=request,
        position=position,
        sampling_id=np.concatenate(sampling_ids or [np.empty(0, np.int32)])[first],
        phase=phase_code(position, known.prompt_tokens(request)),
        octave=position_octave(position),
    )
    token_of_row = tuple(
        np.where(keep, np.searchsorted(unique, key), -1).astype(np.int64)
        for key, keep in zip(keys, kept, strict=True)
    )
    return JoinedRows(tokens, token_of_row, superseded, unknown, beyond, num_rejected)


class _RequestLengths:
    """Look-ups by request number, vectorized."""

    def __init__(self, requests: dict[int, RequestRecord]) -> None:
        self._numbers = np.array(sorted(requests), dtype=np.int64)
        records = [requests[number] for number in self._numbers.tolist()]
        self._prompt = np.array([r.prompt_tokens for r in records], dtype=np.int64)
        endless = np.iinfo(np.int64).max
        self._end = np.array(
            # The last output token is never fed back: its position may hold a rejected draft.
            [endless if r.status == "running" else r.computed_tokens for r in records],
            dtype=np.int64,
        )

    def contains(self, request: NDArray[Any]) -> NDArray[np.bool_]:
        return np.isin(request, self._numbers)

    def prompt_tokens(self, request: NDArray[Any]) -> NDArray[np.int64]:
        return self._look_up(self._prompt, request)

    def num_positions(self, request: NDArray[Any]) -> NDArray[np.int64]:
        return self._look_up(self._end, request)

    def _look_up(self, column: NDArray[np.int64], request: NDArray[Any]) -> NDArray[np.int64]:
        if not len(self._numbers):
            return np.zeros(len(request), dtype=np.int64)
        index = np.searchsorted(self._numbers, request).clip(0, len(self._numbers) - 1)
        found: NDArray[np.int64] = column[index]
        return found


def _token_key(rows: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    return (rows["request"].astype(np.int64) << 32) | rows["position"].astype(np.int64)


def _last_writes(rows: dict[str, NDArray[Any]], eligible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark, among the eligible rows, the last one of each token: highest step, then latest row."""
    index = np.flatnonzero(eligible)
    key, step = _token_key(rows)[index], rows["step"][index]
    order = np.lexsort((index, step, key))
    ordered = key[order]
    is_last = np.ones(len(order), dtype=bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    last = np.zeros(len(eligible), dtype=bool)
    last[index[order[is_last]]] = True
    return last
