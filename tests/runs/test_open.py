"""A run opens if it is whole; every fault is named with its file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fabricate_run import fabricate_run, read_tables, run_record, write_record

from kvtrace.errors import IntegrityError, NotATraceError, SchemaVersionError
from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.runs.open import connect, open_run
from kvtrace.runs.schema import RUN_FILE, TABLES
from kvtrace.trace.format import seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.runs.table import Table

SMALL = Path(__file__).parents[1] / "queries" / "input"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fabricate_run(tmp_path / "small.run", read_tables(SMALL))


def test_an_open_run_has_its_record_and_every_table(run: Path) -> None:
    opened = open_run(run)
    assert [source.name for source in opened.record.sources] == ["day"]
    connection = connect(opened)
    for table in TABLES:
        found = connection.execute(f"SELECT * FROM '{table.file_name}'").description or []
        assert [column[0] for column in found] == [column.name for column in table.columns]


@pytest.mark.parametrize("name", ["we[ir]d * ? 'name'", "layer=3", "a b"])
def test_a_run_opens_whatever_its_directory_is_called(tmp_path: Path, name: str) -> None:
    run = fabricate_run(tmp_path / name / "small.run", read_tables(SMALL))
    connection = connect_with_views(open_run(run))
    assert connection.execute("SELECT DISTINCT layer FROM cells").fetchall() == [(0,)]


def test_a_directory_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match=r"nowhere: no such file"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(NotATraceError, match=r"not a kvtrace run"):
        open_run(tmp_path)
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(NotATraceError, match="a trace, not a run; kvtrace replay"):
        open_run(tmp_path)


def test_a_run_of_a_newer_kvtrace_is_refused(run: Path) -> None:
    write_record(run, run_record(schema_version="2.0"))
    with pytest.raises(SchemaVersionError, match=r"run\.json: schema version 2\.0"):
        open_run(run)


def test_a_newer_minor_version_opens_and_its_unknown_columns_are_ignored(run: Path) -> None:
    table = pq.read_table(run / "cells.parquet")
    pq.write_table(table.append_column("num_later", pa.array([1] * len(table))), run / "cells.parquet")
    write_record(run, run_record(schema_version="1.7"))
    columns = connect(open_run(run)).execute("SELECT * FROM 'cells.parquet'").description or []
    assert "num_later" not in [column[0] for column in columns]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 3}', "\x00\x01", "[" * 100_000])
def test_a_damaged_record_is_named(run: Path, content: str) -> None:
    (run / "run.json").write_text(content)
    with pytest.raises(IntegrityError, match=r"run\.json"):
        open_run(run)


def test_a_record_that_was_edited_is_named(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["device"] = "cuda:0"
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match=r"run\.json: damaged: checksum"):
        open_run(run)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_missing_table_is_named(run: Path, table: Table) -> None:
    file = run / table.file_name
    file.unlink()
    with pytest.raises(IntegrityError, match=f"{file.name}: missing"):
        open_run(run)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_that_was_cut_or_has_a_flipped_bit_is_named(run: Path, table: Table) -> None:
    file = run / table.file_name
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for damaged in (content[:-20], bytes(flipped), b""):
        file.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=f"{file.name}: damaged: its CRC32C"):
            open_run(run)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet file at all"])
def test_a_table_that_is_no_parquet_file_is_named(run: Path, content: bytes) -> None:
    (run / "cells.parquet").write_bytes(content)
    write_record(run, run_record())
    with pytest.raises(IntegrityError, match=r"cells\.parquet: damaged"):
        connect(open_run(run))


def test_a_table_without_a_column_is_named_with_it(run: Path) -> None:
    pq.write_table(pq.read_table(run / "cells.parquet").drop_columns(["num_clipped"]), run / "cells.parquet")
    write_record(run, run_record())
    with pytest.raises(IntegrityError, match=r"cells\.parquet: not the cells table .*num_clipped"):
        connect(open_run(run))


def test_a_connection_reads_nothing_beyond_the_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    connection = connect(open_run(run))
    for sql in (
        f"FROM '{tmp_path}/secret.csv'",
        f"FROM read_text('{run}/../secret.csv')",
        f"FROM glob('{tmp_path}/*')",
        f"ATTACH '{tmp_path}/new.db'",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET threads = 1",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(sql)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["secret.csv", "small.run"]


def test_a_connection_uses_one_thread_so_that_floats_add_up_in_one_order(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads(**options: bool) -> int:
        return int(connect(opened, **options).execute("SELECT current_setting('threads')").fetchall()[0][0])

    opened = open_run(run)
    assert threads() == threads(large_on_all_cores=True) == 1
    monkeypatch.setattr("kvtrace.runs.open._LARGE_BYTES", 0)
    assert threads() == 1
    assert (
        threads(large_on_all_cores=True)
        == duckdb.connect().execute("SELECT current_setting('threads')").fetchall()[0][0]
    )


def test_a_run_of_an_earlier_minor_version_opens_without_what_came_later(run: Path) -> None:
    for table in TABLES:
        if table.since:
            (run / table.file_name).unlink()
            continue
        file = run / table.file_name
        written = pq.read_table(file).drop_columns([one.name for one in table.columns if one.since])
        for one in table.columns:
            if one.retyped:
                place = written.schema.get_field_index(one.name)
                written = written.set_column(place, one.name, pa.nulls(len(written), pa.string()))
        pq.write_table(written, file)
    (run / RUN_FILE).write_text(seal(run_record(schema_version="1.0")))
    connection = connect_with_views(open_run(run))
    assert connection.execute("SELECT count(*) FROM groups").fetchall() == [(0,)]
    assert connection.execute("SELECT count(calibrated_amax), count(*) FROM scales").fetchall() == [(0, 12)]
    assert len(run_query(connection, find_query("by_workload")).rows) == 8


def test_the_layers_of_an_earlier_runs_findings_are_read_as_a_list(run: Path) -> None:
    finding = {
        "source": "day",
        "candidate": "shipped",
        "id": "missing-layers",
        "ordinal": 0,
        "severity": "error",
        "message": "layers lack scales",
        "action": "add them",
        "evidence": '{"num": 2}',
    }
    rows = [finding | {"layers": layers} for layers in ("3,17", None)]
    file = run / "findings.parquet"
    schema = pq.read_schema(file)
    schema = schema.set(schema.get_field_index("layers"), pa.field("layers", pa.string()))
    pq.write_table(pa.Table.from_pylist(rows, schema), file)
    (run / "layers.parquet").unlink()
    (run / RUN_FILE).write_text(seal(run_record(schema_version="1.1")))
    connection = connect_with_views(open_run(run))
    assert connection.execute("SELECT layers FROM findings").fetchall() == [([3, 17],), (None,)]
    assert connection.execute("SELECT evidence->>'num' FROM findings LIMIT 1").fetchall() == [("2",)]
    assert connection.execute("SELECT count(*) FROM layers").fetchall() == [(0,)]
    assert connection.execute("SELECT count(rounding_floor_db) FROM candidates").fetchall() == [(0,)]


@pytest.mark.parametrize("version", ["1", "1.x", "", None, 1.0])
def test_a_version_that_is_none_is_refused(run: Path, version: object) -> None:
    record = json.loads((run / "run.json").read_text()) | {"schema_version": version}
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match=r"run\.json"):
        open_run(run)


def rewritten(run: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    file = run / f"{table}.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    write_record(run, run_record())


def without(table: pa.Table, column: str) -> pa.Table:
    """Take the first value of a column away."""
    values = table[column].to_pylist()
    first = next(place for place, value in enumerate(values) if value is not None)
    values[first] = None
    place = table.schema.get_field_index(column)
    return table.set_column(
        place, table.schema.field(place), pa.array(values, table.schema.field(place).type)
    )


FORGED = {
    "strings where numbers belong": (
        "cells",
        lambda table: table.set_column(
            table.schema.get_field_index("num_values"), "num_values", pa.array(["many"] * len(table))
        ),
        "column num_values is VARCHAR, expected BIGINT",
    ),
    "all NULL": (
        "cells",
        lambda table: table.set_column(
            table.schema.get_field_index("sum_sq_error"),
            "sum_sq_error",
            pa.nulls(len(table), pa.float64()),
        ),
        "column sum_sq_error lacks values",
    ),
    "one NULL": (
        "cells",
        lambda table: without(table, "sum_sq_error"),
        "column sum_sq_error lacks values",
    ),
    "a limit of one scale is NULL": (
        "scales",
        lambda table: without(table, "max_unclipped_code"),
        "the limits of .* lack values",
    ),
    "a column less": ("rows", lambda table: table.drop_columns(["position"]), "position"),
}


@pytest.mark.parametrize(("table", "change", "expected"), FORGED.values(), ids=FORGED)
def test_a_table_that_no_replay_writes_is_refused_though_its_checksum_is_right(
    run: Path, table: str, change: Callable[[pa.Table], pa.Table], expected: str
) -> None:
    rewritten(run, table, change)
    with pytest.raises(
        IntegrityError, match=rf"{table}\.parquet: not the {table} table of a run: .*{expected}"
    ):
        connect(open_run(run))


@pytest.mark.parametrize("name", ["run.json", "cells.parquet"])
def test_a_pipe_in_a_runs_file_is_named_and_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(
        IntegrityError, match=rf"{name}: cannot be read \(is a pipe, expected a regular file\)"
    ):
        open_run(run)
