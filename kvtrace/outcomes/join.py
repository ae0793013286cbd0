"""Outcomes and the requests of a trace: by the client's id, else by the exact prompt, never by place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import OutcomesError
from kvtrace.figures import percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvtrace.outcomes.outcome import Outcome
    from kvtrace.outcomes.table import OutcomeTable
    from kvtrace.trace.format import RequestRecord
    from kvtrace.trace.reader import Trace

    PairKey = tuple[str, str, int]

MIN_JOINED: Final = 0.9
"""Share of answers that must be found in the trace; below, what is found may be a chosen part."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Which requests of a trace belong to which answers."""

    requests_of: Mapping[PairKey, tuple[int, ...]]
    """Answer → requests, all of one prompt; an answer that was not found is absent."""
    num_answers: int
    num_by_client_id: int
    num_by_prompt: int
    num_ambiguous: int
    """Whose client id several requests have: they are joined by neither that nor their prompt."""
    num_sampled: int
    """Joined to a request that capture sampled."""


def join_to_trace(answers: Iterable[Outcome], table: OutcomeTable, trace: Trace) -> Joined:
    """Return the join of one variant's answers with a trace, which may be of another run.

    Raises OutcomesError: the table was not made with the trace's key, or fewer than 90 % of the answers are
    found.
    """
    if not table.key_is_shared or table.key != trace.record.privacy.key_id:
        raise OutcomesError(
            f"{table.path}: was not made with the key of {trace.path}; "
            "make it again with --key and the kvtrace.key beside that trace"
        )
    joined = join_requests(answers, trace.requests)
    found = len(joined.requests_of)
    if found < MIN_JOINED * joined.num_answers:
        raise OutcomesError(
            f"{table.path}: {found:,} of {joined.num_answers:,} answers "
            f"({percent(found / joined.num_answers)}) are found in {trace.path}, expected "
            f"{percent(MIN_JOINED)} or more; {joined.num_ambiguous:,} are ambiguous. "
            "Did the client send each id as kvtrace_id, or the file hold prompt_token_ids?"
        )
    return joined


def join_requests(answers: Iterable[Outcome], requests: Mapping[int, RequestRecord]) -> Joined:
    """Return the join, whatever share of the answers it finds. Hashes are under one key."""
    by_id, by_prompt = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for number, request in requests.items():
        if request.client_id is not None:
            by_id[request.client_id].append(number)
        if request.prompt_hash is not None:
            by_prompt[request.prompt_hash].append(number)
    requests_of: dict[PairKey, tuple[int, ...]] = {}
    num_answers = num_by_id = num_by_prompt = num_ambiguous = 0
    for answer in answers:
        num_answers += 1
        named = by_id.get(answer.client_id or "", [])
        same_prompt = by_prompt.get(answer.prompt_hash or "", [])
        if len(named) > 1:
            num_ambiguous += 1
        elif found := named or same_prompt:
            requests_of[answer.pair_key] = tuple(found)
            num_by_id += bool(named)
            num_by_prompt += not named
    sampled = sum(any(requests[one].sampled for one in found) for found in requests_of.values())
    return Joined(requests_of, num_answers, num_by_id, num_by_prompt, num_ambiguous, sampled)
