"""Small runs from given rows, with the schema's own types; what a row leaves out gets a neutral value."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.numerics.rounding_floor import rounding_floor_db
from kvtrace.runs.checksums import table_checksums
from kvtrace.runs.record import RunRecord, SourceRecord
from kvtrace.runs.schema import RUN_FILE, TABLES
from kvtrace.trace.format import EngineRecord, ModelRecord, seal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvtrace.runs.table import Column, Table

Rows = list[dict[str, Any]]


def fabricate_run(
    path: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]], record: RunRecord | None = None
) -> Path:
    """Write a run: table name → rows. A table that is not given is empty."""
    path.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        write_table(path, table, tables.get(table.name, ()))
    write_record(path, record or run_record())
    return path


def write_record(path: Path, record: RunRecord) -> None:
    """Write run.json with the checksums of the tables that are there now."""
    record = record.model_copy(update={"tables": table_checksums(path)})
    (path / RUN_FILE).write_text(seal(record, indent=2))


def write_table(path: Path, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = {
        column.name: pa.array([row.get(column.name, _neutral(column, row)) for row in rows], column.type)
        for column in table.columns
    }
    pq.write_table(pa.table(columns, schema=table.arrow_schema), path / table.file_name)


def run_record(*sources: SourceRecord, **fields: Any) -> RunRecord:
    given = {"kvtrace_version": "0.1.0", "created_at": 1.7e9, "device": "cpu"} | fields
    return RunRecord(sources=sources or (source_record(),), **given)


def source_record(name: str = "day", *, has_fp8_cache: bool = True, **fields: Any) -> SourceRecord:
    given: dict[str, Any] = {
        "path": f"{name}.kvtrace",
        "trace_id": name,
        "trace_sha256": "0" * 64,
        "created_at": 1.7e9,
        "model": ModelRecord(
            name="tiny",
            dtype="bfloat16",
            num_layers=1,
            num_attention_heads=2,
            num_kv_heads=2,
            head_dim=10,
            max_model_len=8192,
        ),
        "engine": EngineRecord(
            name="vllm",
            version="0.32.0",
            torch_version="2.13.0",
            kvtrace_version="0.1.0",
            device="cuda",
            kv_cache_dtype="fp8_e4m3" if has_fp8_cache else "auto",
            block_size=16,
        ),
    }
    return SourceRecord(name=name, has_fp8_cache=has_fp8_cache, **(given | fields))


def read_tables(folder: Path) -> dict[str, Rows]:
    """Return the tables of a folder of CSV files, typed by the schema; an empty field is NULL."""
    types = {table.name: {column.name: column.type for column in table.columns} for table in TABLES}
    tables = {}
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="") as lines:
            tables[file.stem] = [
                {name: _parsed(text, types[file.stem][name]) for name, text in row.items()}
                for row in csv.DictReader(lines)
            ]
    return tables


def _parsed(text: str, kind: pa.DataType) -> Any:
    if text == "":
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if pa.types.is_integer(kind):
        return int(text)
    return float(text) if pa.types.is_floating(kind) else text


def _neutral(column: Column, row: Mapping[str, Any]) -> Any:
    kind = column.type
    if column.name in ("calibrated_max_length", "calibrated_amax"):
        return None
    if column.name == "rounding_floor_db":
        return rounding_floor_db(row.get("engine"), row.get("format"))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return 0
    if pa.types.is_boolean(kind):
        return False
    return "" if pa.types.is_string(kind) and not column.may_lack_values else None
