"""`kvtrace ls`: which traces a folder holds."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import JSON, say


def ls(
    folder: Annotated[Path, typer.Argument(help="The directory that capture was told to write to.")],
    as_json: JSON = False,
) -> None:
    """List the traces in a folder, the latest first: when, how many rows, of which model, ended or not.

    Commands that take a trace take such a folder too, and mean its latest trace.
    """
    import json
    import time

    from kvtrace.trace.folder import traces_in
    from kvtrace.trace.folder_text import folder_text

    entries = traces_in(folder)
    if not as_json:
        say(folder_text(entries, time.time()))
        return
    listed = [
        {
            "path": str(entry.path),
            "created_at": entry.record.created_at if entry.record else None,
            "model": entry.record.model.name if entry.record else None,
            "kv_cache_dtype": entry.record.engine.kv_cache_dtype if entry.record else None,
            "num_rows": entry.num_rows,
            "committed_at": entry.committed_at,
            "closed": entry.closed,
            "problem": entry.problem,
        }
        for entry in entries
    ]
    say(json.dumps(listed, indent=2) + "\n", for_programs=True)
