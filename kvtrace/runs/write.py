"""Write a run: complete under its name, or not there at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import InputError, OutputExistsError
from kvtrace.runs.checksums import table_checksums
from kvtrace.runs.schema import RUN_FILE, TABLES
from kvtrace.trace.format import seal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from kvtrace.runs.record import RunRecord
    from kvtrace.runs.table import Table

_ROWS_PER_GROUP: Final = 1 << 19
"""Row groups of this size let DuckDB skip and parallelize, and bound what is held in memory."""
_GROUPS_IN_FLIGHT: Final = 2


class RunWriter:
    """Writes the tables of a run into a hidden sibling directory; `finish` gives it its name.

    Until then nothing exists under `out`. Leaving the `with` block without `finish` removes the sibling; a
    killed process leaves it behind, without run.json, and no command takes it for a run.
    Raises OutputExistsError: `out` exists and `force` is False, or is something else than a run.
    """

    def __init__(self, out: Path | str, *, force: bool = False) -> None:
        self._out = Path(out)
        self._force = force
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._batches: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        # Packing a row group takes as long as making its rows, and pyarrow does it without the GIL.
        self._pool = ThreadPoolExecutor(1, "kvtrace-write")
        self._in_flight: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        check_output(self._out, force=self._force)
        try:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._directory = _sibling(self._out, "partial")
        except OSError as error:
            raise InputError(f"{self._out}: cannot be written: {error.strerror}") from error
        for table in TABLES:
            self._writers[table.name] = pq.ParquetWriter(
                self._directory / table.file_name,
                table.arrow_schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[
                    c.name for c in table.columns if c.type == pa.string() or c.name in _FEW_VALUES
                ],
            )
        return self

    def write(self, table: Table, columns: Mapping[str, Any]) -> None:
        """Append rows. columns: every column's values, as arrays or lists of equal length; None is NULL."""
        schema = self._writers[table.name].schema
        arrays = [_array(columns[field.name], field.type) for field in schema]
        batches = self._batches[table.name]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        if sum(batch.num_rows for batch in batches) >= _ROWS_PER_GROUP:
            self._flush(table)

    def finish(self, record: RunRecord) -> Path:
        """Write what is left and `run.json`, and give the run its name. Returns its path."""
        for table in TABLES:
            self._flush(table)
        while self._in_flight:
            self._in_flight.popleft().result()
        while self._writers:
            self._writers.popitem()[1].close()
        record = record.model_copy(update={"tables": table_checksums(self._directory)})
        (self._directory / RUN_FILE).write_text(seal(record, indent=2) + "\n", encoding="utf-8")
        check_output(self._out, force=self._force)
        if self._out.exists():
            replaced = _sibling(self._out, "replaced")
            self._out.rename(replaced / "run")
            self._directory.rename(self._out)
            shutil.rmtree(replaced)
        else:
            self._directory.rename(self._out)
        return self._out

    def _flush(self, table: Table) -> None:
        """Hand a table's rows over to be written; one row group is written while the next one is made."""
        batches = self._batches.pop(table.name, [])
        if batches:
            rows, writer = pa.Table.from_batches(batches), self._writers[table.name]
            self._in_flight.append(
                self._pool.submit(writer.write_table, rows, row_group_size=_ROWS_PER_GROUP)
            )
        while len(self._in_flight) > _GROUPS_IN_FLIGHT:
            self._in_flight.popleft().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for writer in self._writers.values():
            writer.close()
        shutil.rmtree(self._directory, ignore_errors=True)


_FEW_VALUES: Final = ("layer", "kv_head", "sampling_id", "position_octave")


def check_output(out: Path, *, force: bool) -> None:
    """Raise OutputExistsError if `out` exists, unless `force` is set and it is a run or empty."""
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise OutputExistsError(f"{out}: exists; give another name, or --force to overwrite it")
    is_run = out.is_dir() and ((out / RUN_FILE).is_file() or not any(out.iterdir()))
    if not is_run or out.is_symlink():
        raise OutputExistsError(f"{out}: is no run, so --force does not overwrite it; give another name")


def _sibling(out: Path, purpose: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.{purpose}-", dir=out.parent))
    if purpose == "partial":
        umask = os.umask(0)
        os.umask(umask)
        directory.chmod(0o777 & ~umask)
    return directory


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(kind) if values.type != kind else values
    return pa.array(values, type=kind)
