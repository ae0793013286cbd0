"""kvtrace's own `serving.jsonl`: one logical request a line. docs/serving.md says what each key means."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import flag, shown, text, text_or_none, whole, whole_or_none
from kvtrace.outcomes.strict_files import json_lines, located
from kvtrace.serving.record import PHASES, STATUSES, LoadRun, Served
from kvtrace.serving.times import amount, microseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS: Final = (
    "id", "class", "phase", "planned_s", "dispatched_s", "first_token_s", "token_times_s", "last_token_s",
    "finished_s", "prompt_tokens", "output_tokens", "status", "accepted", "retries", "cost", "engine_queue_s",
    "engine_first_token_s",
)  # fmt: skip
_MAX_TOKENS: Final = 1_000_000


def is_own(first: dict[str, Any]) -> bool:
    """Return whether a file's first line is one of ours."""
    return {"id", "status", "planned_s"} <= first.keys()


def read_own(path: Path) -> Iterator[LoadRun | Served]:
    """Yield the run and its requests. Raises OutcomesError: a line is not what docs/serving.md says."""
    yield LoadRun(path.stem, "serving.jsonl", planned_source="trace", stamps="tokens")
    for number, record in json_lines(path):
        with located(path, f"line {number}"):
            served = _served(record)
        yield served


def _served(record: dict[str, Any]) -> Served:
    unknown = [shown(key) for key in record if key not in KEYS]
    if unknown:
        raise ValueError(f"has {', '.join(unknown[:5])}; known are {', '.join(KEYS)}")
    status, phase = record.get("status"), record.get("phase", "measured")
    if status not in STATUSES:
        raise ValueError(f"status is {shown(status)}, expected one of {', '.join(STATUSES)}")
    if phase not in PHASES:
        raise ValueError(f"phase is {shown(phase)}, expected one of {', '.join(PHASES)}")
    planned = seconds(record, "planned_s", may_be_negative=True)
    if planned is None:
        raise ValueError("planned_s is None, expected seconds: when the request was to arrive")
    first, last = (seconds(record, key, may_be_negative=True) for key in ("first_token_s", "last_token_s"))
    output_tokens = whole_or_none(record, "output_tokens")
    stamps = _token_times(record.get("token_times_s"))
    if stamps is not None:
        if output_tokens not in (None, len(stamps)):
            raise ValueError(f"output_tokens is {output_tokens}, token_times_s has {len(stamps):,}")
        output_tokens = len(stamps)
        if stamps:
            first, last = first if first is not None else stamps[0], last if last is not None else stamps[-1]
    served = Served(
        id=text(record, "id"),
        status=status,
        phase=phase,
        workload=text_or_none(record, "class", most=64),
        planned_us=planned,
        dispatched_us=seconds(record, "dispatched_s", may_be_negative=True),
        first_us=first,
        last_us=last,
        done_us=seconds(record, "finished_s", may_be_negative=True),
        gaps_us=None if stamps is None else tuple(after - before for before, after in pairwise(stamps)),
        prompt_tokens=whole_or_none(record, "prompt_tokens"),
        output_tokens=output_tokens,
        accepted=None if record.get("accepted") is None else flag(record, "accepted"),
        retries=whole(record, "retries") if "retries" in record else 0,
        cost=amount(record, "cost"),
        engine_queue_us=seconds(record, "engine_queue_s"),
        engine_first_us=seconds(record, "engine_first_token_s"),
    )
    _check_order(served)
    return served


def _token_times(times: Any) -> list[int] | None:
    if times is None:
        return None
    if not isinstance(times, list) or len(times) > _MAX_TOKENS:
        raise ValueError("token_times_s is expected to be a list of seconds, one a token")
    found = [microseconds(one, "token_times_s", may_be_negative=True) for one in times]
    if found != sorted(found):
        raise ValueError("token_times_s is expected to rise")
    return found


def _check_order(served: Served) -> None:
    names = ("dispatched_us", "first_us", "last_us", "done_us")
    known = [(name, value) for name in names if (value := getattr(served, name)) is not None]
    for (before, one), (after, other) in pairwise(known):
        if other < one:
            early, late = (name.removesuffix("_us") for name in (after, before))
            raise ValueError(f"{early} is before {late}; are all times of one clock?")
    if served.status == "completed" and served.done_us is None:
        raise ValueError("finished_s is None, expected seconds: the request was completed")
