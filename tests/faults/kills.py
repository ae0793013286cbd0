"""`kill -9` of the real writer's process after a random number of rows, fed with real steps."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faults.feeding import Job, start
from faults.stored import check_stored, reports
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kill:
    """One death. problem: empty where all is as it should be."""

    number: int
    num_handed: int
    num_acknowledged: int
    """Rows that the process saw committed before it died."""
    num_stored: int
    problem: str = ""


def kill_writers(folder: Path, seed: int, num_kills: int) -> Iterator[Kill]:
    """Kill one process after the other. Rows until then and pace depend on the seed and the number alone."""
    for number in range(num_kills):
        draw = random.Random(f"{seed}:kill:{number}")
        job = Job(
            trace=folder / f"{number}.kvtrace",
            reports=folder / f"{number}.reports",
            flush_seconds=draw.choice([0.005, 0.02, 3600.0]),
            seconds_between_steps=draw.choice([0.0, 0.001, 0.003]),
        )
        # Rows that wait for a full chunk are not committed for long: of them, those handed over count.
        what = "handed" if job.flush_seconds > 1 else draw.choice(["handed", "committed"])
        yield _kill(number, job, what, draw.randint(1, 400))


def _kill(number: int, job: Job, what: str, num_rows: int) -> Kill:
    """Kill it once it said that so many rows are `what`: handed or committed."""
    process = start(job)
    deadline = time.monotonic() + 120
    while reports(job.reports)[what] < num_rows and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.join()
    said = reports(job.reports)
    handed, acknowledged = said["handed"], max(said["committed"], 0)
    if said[what] < num_rows:
        return Kill(
            number, handed, acknowledged, 0, f"only {said[what]} of {num_rows} rows were {what} in 120 s"
        )
    try:
        stored = check_stored(job.trace)
        assert stored.num_rows >= acknowledged, (
            f"{acknowledged} rows were committed, {stored.num_rows} are there"
        )
        assert not stored.closed
        assert "not closed in order: the last rows may be lost" in stored.text
    except InputError as error:
        # Without a single committed row there is nothing to open, and the error says that.
        is_empty = acknowledged == 0 and "holds no committed row" in str(error)
        return Kill(number, handed, acknowledged, 0, "" if is_empty else str(error))
    except Exception as error:  # noqa: BLE001 -- whatever a user would see as a traceback is a finding
        return Kill(number, handed, acknowledged, 0, f"{type(error).__name__}: {error}")
    return Kill(number, handed, acknowledged, stored.num_rows)
