"""The record of looks: who looks again and again at growing results finds sooner or later what was hoped for.

So looks are planned, and each gets its share of the error (`make quality-simulations` shows what it saves).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvtrace.errors import InputError, OutcomesError
from kvtrace.files.replaced import replace_file
from kvtrace.outcomes.fields import text, whole
from kvtrace.outcomes.strict_files import json_lines, located

if TYPE_CHECKING:
    from pathlib import Path


def take_look(record: Path | None, *, planned: int, data: str, num_pairs: int, policy: str | None) -> int:
    """Return which look this is, counted from 1, and write it down. The same data again are no new look.

    record: a file of JSON lines; None where one look is planned and none is recorded. Raises InputError:
    several looks are planned and there is no record, or it cannot be read or written.
    """
    if record is None:
        if planned > 1:
            raise InputError(
                f"the policy plans {planned:,} looks; name the file that counts them with --looks FILE"
            )
        return 1
    lines = []
    if record.exists() or record.is_symlink():  # one that leads nowhere is no first look
        for number, line in json_lines(record):
            with located(record, f"line {number}"):
                whole(line, "pairs")
                lines.append((text(line, "data"), line))
    earlier = [found for found, _ in lines]
    if data in earlier:
        return earlier.index(data) + 1
    look = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "pairs": num_pairs,
        "policy": policy,
        "data": data,
    }
    try:
        content = "".join(json.dumps(line) + "\n" for line in (*(line for _, line in lines), look))
        replace_file(record, content)
    except OSError as error:
        raise OutcomesError(f"{record}: cannot be written: {error.strerror or error}") from error
    return len(lines) + 1
