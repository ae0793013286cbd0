"""kvtrace's own `outcomes.jsonl`: one judged answer a line. docs/outcomes.md says what each key means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import shown, table, text, text_or_none, whole, whole_or_none
from kvtrace.outcomes.outcome import KINDS, Answer
from kvtrace.outcomes.strict_files import json_lines, located
from kvtrace.trace.request_ids import id_of_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.outcomes.source import Source

KEYS: Final = (
    "id", "variant", "repetition", "task", "cluster", "outcome", "reason", "output_tokens", "tags", "prompt",
    "prompt_token_ids", "request_id", "response_id",
)  # fmt: skip
_MAX_TAGS: Final = 32
_MAX_TAG: Final = 64
_MAX_TOKEN: Final = 2**32


def is_own(first: dict[str, Any]) -> bool:
    """Return whether a file's first line is one of ours."""
    return "id" in first and "outcome" in first


def read_own(source: Source) -> Iterator[Answer]:
    """Yield the answers of a file. Raises OutcomesError: a line is not what docs/outcomes.md says."""
    for number, record in json_lines(source.path):
        with located(source.path, f"line {number}"):
            yield _answer(record)


def _answer(record: dict[str, Any]) -> Answer:
    unknown = [shown(key) for key in record if key not in KEYS]
    if unknown:
        raise ValueError(f"has {', '.join(unknown[:5])}; known are {', '.join(KEYS)}")
    outcome = record.get("outcome")
    if outcome not in KINDS:
        raise ValueError(f"outcome is {shown(outcome)}, expected one of {', '.join(KINDS)}")
    prompt = record.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise ValueError(f"prompt is {shown(prompt)}, expected a text")
    return Answer(
        id=text(record, "id"),
        outcome=outcome,
        task=text_or_none(record, "task") or "",
        repetition=whole(record, "repetition") if "repetition" in record else 0,
        cluster=text_or_none(record, "cluster"),
        reason=text_or_none(record, "reason", most=1000),
        output_tokens=whole_or_none(record, "output_tokens"),
        tags=_tags(table(record, "tags")),
        variant=text_or_none(record, "variant", most=64),
        prompt=prompt,
        prompt_token_ids=_token_ids(record.get("prompt_token_ids")),
        external_id=_external_id(record),
        has_own_id=True,
    )


def _external_id(record: dict[str, Any]) -> str | None:
    sent, response = text_or_none(record, "request_id"), text_or_none(record, "response_id", most=600)
    if response is None:
        return sent
    found = id_of_response(response)
    if found is None:
        raise ValueError(f"response_id is {shown(response)}, expected chatcmpl-… or cmpl-… as vLLM has it")
    if sent not in (None, found):
        raise ValueError(f"request_id is {shown(sent)}, and its response_id has {shown(found)}")
    return found


def _tags(tags: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    if len(tags) > _MAX_TAGS:
        raise ValueError(f"it has {len(tags):,} tags, expected at most {_MAX_TAGS}")
    if any(not key.strip() or "=" in key or len(key) > _MAX_TAG for key in tags):
        raise ValueError(f"a tag's name is empty, has = in it, or more than {_MAX_TAG} characters")
    return tuple(sorted((key, text(tags, key, most=_MAX_TAG)) for key in tags))


def _token_ids(ids: Any) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(one) is not int or not 0 <= one < _MAX_TOKEN for one in ids):
        raise ValueError("prompt_token_ids is expected to be a list of token ids from 0 to 2³² − 1")
    return tuple(ids)
