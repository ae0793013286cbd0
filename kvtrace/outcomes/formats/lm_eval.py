"""lm-evaluation-harness: `samples_TASK_DATE.jsonl`, one line a document and filter.

Source: lm_eval/loggers/evaluation_tracker.py and evaluator.py of 0.4.13. Its `prompt_hash` is a plain SHA-256
of the prompt's text, which can be guessed; it is not taken over.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kvtrace.outcomes.fields import name, shown, table, text, zero_or_one
from kvtrace.outcomes.outcome import Answer, Kind
from kvtrace.outcomes.strict_files import json_lines, located

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.outcomes.source import Source

_FILE_NAME: Final = re.compile(r"samples_(?P<task>.+)_\d{4}-\d{2}-\d{2}T[\d.-]+\.jsonl")


def is_lm_eval(first: dict[str, Any]) -> bool:
    """Return whether a file's first line is one of lm-eval's samples."""
    return {"doc_id", "filter", "resps"} <= first.keys()


def read_lm_eval(source: Source) -> Iterator[Answer]:
    """Yield the answers of one task under one filter.

    Raises OutcomesError: the file's name has no task, several filters or metrics are there and none was
    chosen, the metric is neither 0 nor 1, or a line is something else.
    """
    with located(source.path):
        task = _task(source.path)
    chosen = source.choices.filter
    num_lines = num_chosen = 0
    for number, record in json_lines(source.path, constants=True):
        with located(source.path, f"line {number}"):
            found = text(record, "filter")
            num_lines += 1
            if source.choices.filter is None and chosen not in (None, found):
                raise ValueError(
                    f"it has the filters {shown(chosen)} and {shown(found)}; choose with --filter"
                )
            chosen = chosen or found
            if found != chosen:
                continue
            num_chosen += 1
            answer = _answer(record, task, source.choices.metric)
        yield answer
    with located(source.path):
        if num_lines and not num_chosen:
            raise ValueError(f"has no line of the filter {shown(chosen)}")


def _task(path: Path) -> str:
    named = _FILE_NAME.fullmatch(path.name)
    if named is None:
        raise ValueError(
            "its name does not say the task; keep it as lm-eval wrote it, samples_TASK_DATE.jsonl"
        )
    return named["task"]


def _answer(record: dict[str, Any], task: str, metric: str | None) -> Answer:
    prompts = [
        arguments.get("arg_0")
        for arguments in table(record, "arguments").values()
        if isinstance(arguments, dict)
    ]
    return Answer(
        id=name(record, "doc_id"),
        task=task,
        outcome=_kind(record, metric),
        prompt=json.dumps([text(record, "doc_hash"), prompts], sort_keys=True),
    )


def _kind(record: dict[str, Any], metric: str | None) -> Kind:
    if metric is None:
        metrics = record.get("metrics")
        if not isinstance(metrics, list) or len(metrics) != 1 or not isinstance(metrics[0], str):
            raise ValueError(f"its metrics are {shown(metrics)}; choose the one that decides with --metric")
        metric = metrics[0]
    if metric not in record:
        raise ValueError(f"has no metric {shown(metric)}")
    if record[metric] is None:
        return "unjudged"
    return "pass" if zero_or_one(record[metric], metric) else "fail"
