"""Traces with one changed record, and forged profiles."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

import google_crc32c
from faults.damage import copy_trace
from faults.forgeries import KINDS as FORGERIES
from faults.forgeries import forge

from fuzz.odd import changed, odd_json, replace, sealed
from kvtrace.trace.lines import LinesCommit
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY, PROFILE_FILE
from kvtrace.trace.sealed import seal

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases

RECORDS: Final = (
    "trace.json", "requests.jsonl", "sampling.jsonl", "rank-0.zarr/rank.json", "rank-1.zarr/rank.json",
    "rank-0.zarr/commit.json", "rank-1.zarr/commit.json", "rank-1.zarr/dropped.jsonl",
    "rank-1.zarr/dropped.commit.json", "rank-0.zarr/layers/00/k/zarr.json",
    "rank-1.zarr/rows/kv/step/zarr.json", "queries-0.zarr/rank.json", "queries-1.zarr/rank.json",
    "context-1.zarr/rank.json", "queries-1.zarr/commit.json", "queries-0.zarr/layers/01/o/zarr.json",
)  # fmt: skip
RECORDS_OF_QUERIES: Final = (
    "queries-0.zarr/rank.json", "queries-0.zarr/rank.json", "queries-1.zarr/commit.json",
    "context-0.zarr/rank.json", "context-1.zarr/commit.json", "queries-1.zarr/dropped.jsonl",
    "queries-0.zarr/layers/00/q/zarr.json", "rank-0.zarr/rank.json",
)  # fmt: skip
DROPPED: Final = {"request": 1, "num_rows": 2, "reason": "queue_full"}


def records(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change one field of one record of a trace."""
    return _with_a_changed_record(bases.trace, RECORDS, random, folder)


def records_of_queries(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change one field of one record of the stores that a capture of queries leaves."""
    return _with_a_changed_record(bases.queried, RECORDS_OF_QUERIES, random, folder)


def _with_a_changed_record(
    base: Path, files: tuple[str, ...], random: random.Random, folder: Path
) -> tuple[object, ...]:
    trace = folder / "t.kvtrace"
    copy_trace(base, trace)
    file = trace / random.choice(files)
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    number = random.randrange(len(lines)) if lines else 0
    content = json.loads(lines[number]) if lines else dict(DROPPED)
    changed(random, content)
    lines[number : number + 1] = [json.dumps(content) if file.name == "zarr.json" else sealed(content)]
    replace(file, "".join(f"{line}\n" for line in lines))
    if file.suffix == ".jsonl":
        written = file.read_bytes()
        commit = LinesCommit(
            num_bytes=len(written),
            num_lines=len(lines),
            content_crc32c=f"{google_crc32c.value(written):08x}",
        )
        replace(file.with_name(f"{file.stem}.commit.json"), seal(commit))
    return command_on_a_trace(random, trace, folder)


def unsealed(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put into a record what comes before any checksum: odd JSON, cut, deep, or of other bytes."""
    trace = folder / "t.kvtrace"
    copy_trace(bases.trace, trace)
    file = trace / random.choice(RECORDS)
    lines = file.read_text().splitlines() or [json.dumps(DROPPED)]
    content = json.loads(lines[0] if file.suffix == ".jsonl" else file.read_text())
    text = odd_json(random, content).encode()
    if random.random() < 0.3:
        place = random.randrange(len(text) + 1)
        text = text[:place] + random.choice((b"", b"\xff", b"\n", b"\x00")) + text[place + 1 :]
    replace(file, text)
    return command_on_a_trace(random, trace, folder)


def profiles(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Forge a profile: by the user's own key, by another one, or where it is all that there is."""
    trace = folder / "t.kvtrace"
    copy_trace(bases.counted, trace)
    directory, kind = random.choice((PROFILE_DIRECTORY, GROUPS_DIRECTORY)), random.choice(FORGERIES)
    forge(random, trace / directory, kind)
    if random.random() < 0.4:
        record = json.loads((trace / directory / PROFILE_FILE).read_text())
        replace(trace / directory / PROFILE_FILE, sealed(record | {"seal": "0" * 64}))
    elif random.random() < 0.5:
        remove_tensors(trace)
    return ("replay", trace, "-o", folder / "out", "--intervals")


def profile_records(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change one field of a profile's record; its seal is left, or gone."""
    trace = folder / "t.kvtrace"
    copy_trace(bases.counted, trace)
    file = trace / random.choice((PROFILE_DIRECTORY, GROUPS_DIRECTORY)) / PROFILE_FILE
    record = json.loads(file.read_text())
    changed(random, record)
    replace(file, sealed(record))
    if random.random() < 0.3:
        remove_tensors(trace)
    return command_on_a_trace(random, trace, folder)


def kept_sums(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change what is kept of a cache format; its seal is left, or gone."""
    trace = folder / "t.kvtrace"
    copy_trace(bases.counted, trace)
    file = trace / PROFILE_DIRECTORY / "format-fp8_per_token_head.json"
    if random.random() < 0.6:
        record = json.loads(file.read_text())
        changed(random, record)
        replace(file, sealed(record))
    else:
        replace(file, odd_json(random, json.loads(file.read_text())))
    return ("replay", trace, "--cache-dtype", "fp8_per_token_head", "-o", folder / "out")


def remove_tensors(trace: Path) -> None:
    """Leave a trace of which counts are all there is."""
    for chunks in trace.glob("rank-*.zarr/layers/*/*/c"):
        shutil.rmtree(chunks)


def command_on_a_trace(random: random.Random, trace: Path, folder: Path) -> tuple[object, ...]:
    """Return one of the commands that read a trace; what they write is `out`."""
    output = ("-o", folder / "out")
    commands = (
        ("inspect", trace), ("inspect", trace, "--verify"), ("inspect", trace, "--json"),
        ("inspect", trace, "--repair", *output), ("replay", trace, *output),
        ("replay", trace, "--direct", *output), ("calibrate", trace, *output), ("report", trace),
        ("ls", folder),
    )  # fmt: skip
    return random.choices(commands, weights=(3, 2, 1, 2, 5, 1, 2, 1, 1))[0]
