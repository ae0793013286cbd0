"""Outcomes and requests: by the client's id, the front end's, else the exact prompt, never by place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from kvtrace.errors import OutcomesError
from kvtrace.figures import percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvtrace.outcomes.outcome import Outcome
    from kvtrace.outcomes.table import OutcomeTable
    from kvtrace.trace.reader import Trace

    PairKey = tuple[str, str, int]

MIN_JOINED: Final = 0.9
"""Share of answers that must be found in the trace; below, what is found may be a chosen part."""


_BY_PROMPT: Final = "prompt_hash"
_WAYS: Final = ("client_id", "external_id", _BY_PROMPT)
"""What answers and requests have in common, by the names of both; the first that finds one joins."""
Request = TypeVar("Request")


class Traced(Protocol):
    """A request as a trace or a run has it."""

    @property
    def client_id(self) -> str | None:
        """Return the keyed hash of the id that the client gave."""

    @property
    def external_id(self) -> str | None:
        """Return that of the front end's request id."""

    @property
    def prompt_hash(self) -> str | None:
        """Return that of the prompt's tokens."""

    @property
    def sampled(self) -> bool:
        """Return whether capture chose it."""


@dataclass(frozen=True, slots=True)
class Joined(Generic[Request]):
    """Which requests belong to which answers. Request: what names one, such as its number in a trace."""

    requests_of: Mapping[PairKey, tuple[Request, ...]]
    """Answer → requests, all of one prompt; an answer that was not found is absent."""
    num_answers: int
    num_by_client_id: int
    num_by_external_id: int
    num_by_prompt: int
    num_ambiguous: int
    """Whose id several requests have: they are joined by neither that nor their prompt."""
    num_sampled: int
    """Joined to a request that capture sampled."""


def join_to_trace(answers: Iterable[Outcome], table: OutcomeTable, trace: Trace) -> Joined[int]:
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
            "Did the client send each id as kvtrace_id, or has the file request_id or prompt_token_ids?"
        )
    return joined


def join_requests(answers: Iterable[Outcome], requests: Mapping[Request, Traced]) -> Joined[Request]:
    """Return the join, whatever share of the answers it finds. Hashes are under one key."""
    named = {way: defaultdict[str, list[Request]](list) for way in _WAYS}
    for number, request in requests.items():
        for way, numbers in named.items():
            if (value := getattr(request, way)) is not None:
                numbers[value].append(number)
    requests_of: dict[PairKey, tuple[Request, ...]] = {}
    by = dict.fromkeys(_WAYS, 0)
    num_answers = num_ambiguous = 0
    for answer in answers:
        num_answers += 1
        for way in _WAYS:
            found = named[way].get(getattr(answer, way) or "", [])
            if len(found) > 1 and way != _BY_PROMPT:
                num_ambiguous += 1
                break
            if found:
                requests_of[answer.pair_key] = tuple(found)
                by[way] += 1
                break
    sampled = sum(any(requests[one].sampled for one in found) for found in requests_of.values())
    return Joined(
        requests_of, num_answers, by["client_id"], by["external_id"], by[_BY_PROMPT], num_ambiguous, sampled
    )
