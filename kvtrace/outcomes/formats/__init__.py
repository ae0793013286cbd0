"""Which tool wrote a file, told from its name's ending and its first record; one file a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.formats.aiperf import is_aiperf, read_aiperf
from kvtrace.outcomes.formats.inspect_log import is_inspect, read_inspect_archive, read_inspect_document
from kvtrace.outcomes.formats.lm_eval import is_lm_eval, read_lm_eval
from kvtrace.outcomes.formats.own import is_own, read_own
from kvtrace.outcomes.formats.promptfoo import is_promptfoo, read_promptfoo
from kvtrace.outcomes.strict_files import json_document, json_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.outcomes.outcome import Answer
    from kvtrace.outcomes.source import Source

_OF_LINES: Final[dict[str, tuple[Callable[[dict[str, Any]], bool], Callable[[Source], Iterator[Answer]]]]] = {
    "outcomes.jsonl": (is_own, read_own),
    "lm-eval": (is_lm_eval, read_lm_eval),
    "aiperf": (is_aiperf, read_aiperf),
}
_OF_DOCUMENTS: Final[
    dict[str, tuple[Callable[[dict[str, Any]], bool], Callable[[Source, dict[str, Any]], Iterator[Answer]]]]
] = {
    "inspect": (is_inspect, read_inspect_document),
    "promptfoo": (is_promptfoo, read_promptfoo),
}


def read_answers(source: Source) -> tuple[str, Iterator[Answer]]:
    """Return the name of a file's format and its answers, read as they are asked for.

    Raises OutcomesError: the file cannot be read, is of no format that is known, or holds no answer.
    """
    path = source.path
    match path.suffix.lower():
        case ".jsonl":
            _, first = next(json_lines(path, constants=True), (0, None))
            if first is None:
                raise OutcomesError(f"{path}: is empty; expected a line for each answer")
            for name, (is_one, read) in _OF_LINES.items():
                if is_one(first):
                    return name, read(source)
        case ".json":
            document = json_document(path, constants=True)
            for name, (is_whole, read_whole) in _OF_DOCUMENTS.items():
                if is_whole(document):
                    return name, read_whole(source, document)
        case ".eval":
            return "inspect", read_inspect_archive(source)
    raise OutcomesError(
        f"{path}: is of no format that is known; expected outcomes.jsonl, lm-eval's samples_*.jsonl, "
        "Inspect's .eval or .json, aiperf's accuracy_export.jsonl, or promptfoo's results.json"
    )
