"""Runs with a changed record or table, every checksum right."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.bases import FORMAT
from fuzz.odd import ODD, changed, sealed
from kvtrace.runs.checksums import table_checksums

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases

_QUERIES = ("rank_heads", "coverage", "by_workload", "by_position", "compare_candidates", "locate_heads")


def runs(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a run's record, or one column of a table."""
    return _command(bases, random, _changed(bases.run, random, folder))


def runs_with_harm(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Do the same with a run of a trace with queries, and ask for a plan of layers too."""
    run = _changed(bases.harm, random, folder)
    if random.random() < 0.4:
        return ("plan", run, "--candidate", FORMAT, "--keep", random.choice((0, 1, 9)))
    return _command(bases, random, run)


def _changed(base: Path, random: random.Random, folder: Path) -> Path:
    run = folder / "run"
    shutil.copytree(base, run)
    record = json.loads((run / "run.json").read_text())
    if random.random() < 0.3:
        changed(random, record)
    else:
        _change_table(random, run)
        record["tables"] = table_checksums(run)
    (run / "run.json").write_text(sealed(record))
    return run


def _command(bases: Bases, random: random.Random, run: Path) -> tuple[object, ...]:
    commands = (
        ("report", run), ("report", run, "--json"), ("report", run, "--format", "md"),
        ("report", run, "--format", "html"),
        ("query", run, random.choice(_QUERIES)), ("query", run, random.choice(_QUERIES), "--format", "csv"),
        ("query", run, "--sql", "SELECT * FROM 'cells.parquet' LIMIT 3"),
        ("check", run, "--policy", bases.policy, "--candidate", bases.scales.name), ("compare", run),
    )  # fmt: skip
    return random.choices(commands, weights=(2, 2, 1, 1, 6, 3, 4, 3, 3))[0]


def _change_table(random: random.Random, run: Path) -> None:
    file = random.choice(sorted(run.glob("*.parquet")))
    pq.write_table(odd_table(random, pq.read_table(file)), file)


def odd_table(random: random.Random, table: pa.Table) -> pa.Table:
    """Return a table of which one column is another, or gone, or all rows are gone or there twice."""
    place = random.randrange(table.num_columns)
    field = table.schema.field(place)
    what = random.choice(("empty", "all NULL", "strings", "gone", "odd", "odd", "twice", "wide"))
    if what == "empty":
        return table.slice(0, 0)
    if what == "gone":
        return table.remove_column(place)
    if what == "twice":
        return pa.concat_tables([table, table])
    return table.set_column(place, field.name, _column(random, what, field.type, len(table)))


def _column(random: random.Random, what: str, kind: pa.DataType, length: int) -> Any:
    if what == "all NULL":
        return pa.nulls(length, kind)
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if what == "wide" and is_number:
        return pa.array([2**40] * length, pa.float64() if pa.types.is_integer(kind) else pa.int64())
    if what == "strings" or not is_number:
        odd = random.choice([value for value in ODD if isinstance(value, str) and "\x00" not in value])
        return pa.array([odd] * length)
    values: tuple[float, ...] = (0, -1, 2**20, 1, 3, 2**31 - 1)
    if pa.types.is_floating(kind):
        values = (*map(float, values[:-1]), float("nan"), float("inf"), -float("inf"), 1e30, 1e-30)
    return pa.array([random.choice(values) for _ in range(length)], kind)
