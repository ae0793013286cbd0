"""The connector with a writer whose thread dies at its third chunk, for one of the faults in a real vLLM."""

from typing import Any

from kvtrace_capture.connector import KVTraceConnector as KVTraceConnector
from kvtrace_capture.store_files import StoreFiles

_append_chunk = StoreFiles.append_chunk


def _die_at_the_third(files: StoreFiles, *arguments: Any) -> None:
    if len(files._commits) == 2:
        raise SystemExit("the writer's thread was told to die")
    _append_chunk(files, *arguments)


StoreFiles.append_chunk = _die_at_the_third  # type: ignore[method-assign]
