"""The kinds of files: how a case of each is drawn, and which command gets it."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from faults.damage import copy_trace
from faults.forgeries import KINDS as FORGERIES
from faults.forgeries import forge
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from fuzz.odd import ODD, changed, sealed
from kvtrace.profile.ready import ready_profile
from kvtrace.runs.checksums import table_checksums
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.lines import LinesCommit
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY, PROFILE_FILE
from kvtrace.trace.reader import open_trace
from kvtrace.trace.sealed import seal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Draw = Callable[["Bases", random.Random, Path], tuple[str, tuple[object, ...]]]
    """(the bases, a source of chance, a new folder) → (what was changed, the command's arguments)"""

SCALES: Final = Path(__file__).parents[2] / "samples/scales/chat-per-head"
POLICY: Final = """
schema_version = "1.0"
name = "service"
date = 2026-01-01
[limits]
vectors_clipped_frac = 0.01
sqnr_db = 25.0
[coverage]
requests = 1
tokens = 10
[[segments]]
name = "all"
"""
RECORDS: Final = (
    "trace.json", "requests.jsonl", "sampling.jsonl", "rank-0.zarr/rank.json", "rank-1.zarr/rank.json",
    "rank-1.zarr/commit.json", "rank-0.zarr/layers/00/k/zarr.json",
)  # fmt: skip


class Bases:
    """Sound files to change."""

    def __init__(self, folder: Path) -> None:
        chance = np.random.default_rng(20)
        self.trace = fabricate_trace(
            folder / "base" / "small.kvtrace",
            {(layer, t): chance.normal(0, 3, (40, 4, 8)) for layer in range(2) for t in "kv"},
            request_of_row=[0] * 25 + [1] * 15,
            position_of_row=[*range(25), *range(15)],
            requests=[
                request(0, prompt_tokens=20, output_tokens=5),
                request(1, prompt_tokens=15, workload="b"),
            ],
            ranks=[(0, 1), (2, 3)],
            rows_per_chunk=16,
        )
        self.counted = folder / "base" / "counted.kvtrace"
        shutil.copytree(self.trace, self.counted)
        opened = open_trace(self.counted)
        for directory, cells in (
            (PROFILE_DIRECTORY, find_cells(opened)),
            (GROUPS_DIRECTORY, find_group_cells(opened)),
        ):
            with ready_profile(opened, cells, "cpu", directory=directory):
                pass
        self.run = folder / "base" / "run"
        assert kvtrace("replay", self.counted, "-o", self.run).returncode == 0
        self.policy = folder / "base" / "policy.toml"
        self.policy.write_text(POLICY)


def records(bases: Bases, random: random.Random, folder: Path) -> tuple[str, tuple[object, ...]]:
    """Change one field of one record of a trace."""
    trace = folder / "t.kvtrace"
    copy_trace(bases.trace, trace)
    file = random.choice(RECORDS)
    *lines, last = (
        (trace / file).read_text().splitlines() if file.endswith("l") else [(trace / file).read_text()]
    )
    content = json.loads(last)
    what = changed(random, content)
    text = json.dumps(content) if file.endswith("zarr.json") else sealed(content)
    _replace(trace / file, "".join(f"{line}\n" for line in (*lines, text)))
    if file.endswith("l"):
        written = (trace / file).read_bytes()
        commit = LinesCommit(
            num_bytes=len(written),
            num_lines=len(lines) + 1,
            content_crc32c=f"{google_crc32c.value(written):08x}",
        )
        _replace(trace / file.replace(".jsonl", ".commit.json"), seal(commit))
    command = random.choice((("inspect", trace), ("inspect", trace, "--verify"), _replay(trace, folder)))
    return f"{file} {what}", command


def profiles(bases: Bases, random: random.Random, folder: Path) -> tuple[str, tuple[object, ...]]:
    """Forge a profile: by the user's own key, by another one, or where it is all that there is."""
    trace = folder / "t.kvtrace"
    copy_trace(bases.counted, trace)
    directory, kind = random.choice((PROFILE_DIRECTORY, GROUPS_DIRECTORY)), random.choice(FORGERIES)
    file = forge(random, trace / directory, kind)
    if random.random() < 0.4:
        record = json.loads((trace / directory / PROFILE_FILE).read_text())
        _replace(trace / directory / PROFILE_FILE, sealed(record | {"seal": "0" * 64}))
    elif random.random() < 0.5:
        for chunks in trace.glob("rank-*.zarr/layers/*/*/c"):
            shutil.rmtree(chunks)
    return f"{directory}/{file} {kind}", (*_replay(trace, folder), "--intervals")


def runs(bases: Bases, random: random.Random, folder: Path) -> tuple[str, tuple[object, ...]]:
    """Change a run's record or one column of a table, every checksum right."""
    run = folder / "run"
    shutil.copytree(bases.run, run)
    record = json.loads((run / "run.json").read_text())
    if random.random() < 0.4:
        what = f"run.json {changed(random, record)}"
    else:
        what = _change_table(random, run)
        record["tables"] = table_checksums(run)
    (run / "run.json").write_text(sealed(record))
    command = random.choice(
        (
            ("report", run), ("report", run, "--json"), ("query", run, "rank_heads"),
            ("query", run, "coverage"),
            ("check", run, "--policy", bases.policy), ("compare", run),
        )
    )  # fmt: skip
    return what, command


def artifacts(bases: Bases, random: random.Random, folder: Path) -> tuple[str, tuple[object, ...]]:
    """Change the header of a checkpoint's tensors, or its config."""
    artifact = folder / "artifact"
    shutil.copytree(SCALES, artifact)
    file = random.choice(sorted(artifact.iterdir()))
    if file.suffix == ".json":
        content = json.loads(file.read_text())
        what = changed(random, content)
        file.write_text(json.dumps(content))
    else:
        body = file.read_bytes()
        (length,) = struct.unpack("<Q", body[:8])
        header = json.loads(body[8 : 8 + length])
        what = changed(random, header)
        text = json.dumps(header).encode()
        said = random.choice((len(text), len(text), len(text), len(text) + 1, 10**7, 2**63))
        file.write_bytes(struct.pack("<Q", said) + text + body[8 + length :])
    return f"{file.name} {what}", ("scales", artifact)


def policies(bases: Bases, random: random.Random, folder: Path) -> tuple[str, tuple[object, ...]]:
    """Put an odd value, or a byte, into a policy."""
    policy = folder / "policy.toml"
    lines = POLICY.splitlines()
    place = random.randrange(1, len(lines))
    key = lines[place].partition(" = ")[0]
    value = random.choice(ODD)
    lines[place] = random.choice(
        (f"{key} = {json.dumps(value)}", lines[place] * 2, "[" * 3000, "x = nan", "")
    )
    policy.write_text("\n".join(lines))
    return lines[place][:60], ("check", bases.run, "--policy", policy)


def manifests(bases: Bases, random: random.Random, folder: Path) -> tuple[str, tuple[object, ...]]:
    """Put an odd value into a serving manifest."""
    manifest = folder / "manifest.json"
    names = (
        "image_digest",
        "kv_dtype",
        "gpu_inventory",
        "skipped_layers",
        "effective_args",
        "trace_sha256",
        "x",
    )
    content = {random.choice(names): random.choice(ODD) for _ in range(2)}
    manifest.write_text(json.dumps(content))
    return str(content)[:60], (*_replay(bases.counted, folder), "--manifest", manifest)


KINDS: Final[dict[str, Draw]] = {
    "records of a trace": records,
    "profiles": profiles,
    "runs": runs,
    "artifacts": artifacts,
    "policies": policies,
    "manifests": manifests,
}


def _replay(trace: Path, folder: Path) -> tuple[object, ...]:
    return ("replay", trace, "-o", folder / "out")


def _replace(path: Path, text: str) -> None:
    """Write a file anew: the one that is there may be a hard link to the base's."""
    path.unlink(missing_ok=True)
    path.write_text(text)


def _change_table(random: random.Random, run: Path) -> str:
    file = random.choice(sorted(run.glob("*.parquet")))
    table = pq.read_table(file)
    place = random.randrange(table.num_columns)
    field = table.schema.field(place)
    what = random.choice(("empty", "all NULL", "strings", "gone", "odd"))
    if what == "empty":
        table = table.slice(0, 0)
    elif what == "gone":
        table = table.remove_column(place)
    else:
        column: Any
        if what == "all NULL":
            column = pa.nulls(len(table), field.type)
        elif what == "strings" or not (pa.types.is_floating(field.type) or pa.types.is_integer(field.type)):
            column = pa.array(["\x1b[31mx"] * len(table))
        else:
            column = pa.array([random.choice((0, -1, 2**20, 1, 3)) for _ in range(len(table))], field.type)
        table = table.set_column(place, field.name, column)
    pq.write_table(table, file)
    return f"{file.name} {field.name} {what}"
