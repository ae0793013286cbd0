"""Which tool wrote a file of served requests, told from its first record; one file a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.strict_files import json_document, json_lines
from kvtrace.serving.formats.aiperf import is_aiperf, read_aiperf
from kvtrace.serving.formats.columns import result_objects
from kvtrace.serving.formats.guidellm import is_guidellm, read_guidellm
from kvtrace.serving.formats.own import is_own, read_own
from kvtrace.serving.formats.sglang_bench import is_sglang_bench, read_sglang_bench
from kvtrace.serving.formats.vllm_bench import is_vllm_bench, read_vllm_bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvtrace.serving.record import LoadRun, Served

    Is = Callable[[dict[str, Any]], bool]
    Read = Callable[[Path], Iterator[LoadRun | Served]]

_OF_LINES: Final[tuple[tuple[Is, Read], ...]] = ((is_own, read_own), (is_aiperf, read_aiperf))
_OF_RESULTS: Final[tuple[tuple[Is, Read], ...]] = (
    (is_sglang_bench, read_sglang_bench),
    (is_vllm_bench, read_vllm_bench),
)


def read_served(path: Path) -> Iterator[LoadRun | Served]:
    """Yield each run of a file, followed by its requests, read as they are asked for.

    Raises OutcomesError: the file cannot be read, or is of no format that is known.
    """
    if path.suffix.lower() == ".jsonl":
        _, first = next(json_lines(path, constants=True), (0, None))
        if first is None:
            raise OutcomesError(f"{path}: is empty; expected a line for each request")
        for is_one, read in (*_OF_LINES, *_OF_RESULTS):
            if is_one(first):
                return read(path)
    elif path.suffix.lower() == ".json":
        _, first = next(result_objects(path))
        for is_one, read in _OF_RESULTS:
            if is_one(first):
                return read(path)
        if is_guidellm(first):
            return read_guidellm(path, json_document(path, constants=True))
    raise OutcomesError(
        f"{path}: is of no format that is known; expected serving.jsonl, aiperf's profile_export.jsonl, "
        "GuideLLM's benchmarks.json, or a result of vllm bench serve or SGLang's bench_serving"
    )
