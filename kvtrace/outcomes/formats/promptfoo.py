"""promptfoo: `results.json`, as `promptfoo eval -o results.json` writes it.

Source: promptfoo src/types/index.ts (EvaluateSummaryV2 and V3, EvaluateResult). No file that it wrote itself
was seen.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvtrace.outcomes.fields import flag, shown, table, text, whole, whole_or_none
from kvtrace.outcomes.outcome import Answer, Kind
from kvtrace.outcomes.strict_files import located

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.outcomes.source import Source

_ERROR = 2
"""`failureReason`: 0 none, 1 an assertion failed, 2 an error."""


def is_promptfoo(document: dict[str, Any]) -> bool:
    """Return whether a document is promptfoo's."""
    results = document.get("results")
    return isinstance(results, dict) and "results" in results


def read_promptfoo(source: Source, document: dict[str, Any]) -> Iterator[Answer]:
    """Yield the answers of one provider.

    Raises OutcomesError: an answer came from promptfoo's cache, the file has several providers, or a result
    is something else.
    """
    with located(source.path):
        results = document["results"]["results"]
        if not isinstance(results, list):
            raise ValueError("results.results is expected to be a list")
    provider: str | None = None
    for place, result in enumerate(results):
        with located(source.path, f"result {place}"):
            if not isinstance(result, dict):
                raise ValueError("expected a JSON object")
            found = text(table(result, "provider"), "id")
            if provider not in (None, found):
                raise ValueError(
                    f"has the providers {shown(provider)} and {shown(found)}; write a file for each"
                )
            provider = found
            answer = _answer(result)
        yield answer


def _answer(result: dict[str, Any]) -> Answer:
    if table(result, "response").get("cached") is True:
        raise ValueError("was answered from promptfoo's cache; run it with --no-cache")
    kind: Kind = "pass" if flag(result, "success") else "fail"
    if whole_or_none(result, "failureReason") == _ERROR:
        kind = "error"
    return Answer(
        id=f"{whole(result, 'testIdx')}/{whole(result, 'promptIdx')}",
        outcome=kind,
        reason="promptfoo counts it as an error" if kind == "error" else None,
        prompt=json.dumps([table(result, "prompt").get("raw"), result.get("vars")], sort_keys=True),
    )
