"""Write a run: complete under its name, or not there at all."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import InputError, OutputExistsError
from kvtrace.files.regular import read_regular
from kvtrace.files.staging import put, staged
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.plain_text import plain
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
        with ExitStack() as stack:
            try:
                self._out.parent.mkdir(parents=True, exist_ok=True)
                self._directory = stack.enter_context(staged(self._out))
                self._open_tables()
            except OSError as error:
                raise InputError(f"{self._out}: cannot be written: {error.strerror}") from error
            self._staged = stack.pop_all()
        return self

    def _open_tables(self) -> None:
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
        self._wait(0)
        while self._writers:
            self._writers.popitem()[1].close()
        record = record.model_copy(update={"tables": table_checksums(self._directory)})
        (self._directory / RUN_FILE).write_text(seal(record, indent=2) + "\n", encoding="utf-8")
        check_output(self._out, force=self._force)
        try:
            put(self._directory, self._out)
        except OSError as error:
            raise InputError(f"{self._out}: cannot be written: {error.strerror}") from error
        return self._out

    def _flush(self, table: Table) -> None:
        """Hand a table's rows over to be written; one row group is written while the next one is made."""
        batches = self._batches.pop(table.name, [])
        if batches:
            rows, writer = pa.Table.from_batches(batches), self._writers[table.name]
            self._in_flight.append(
                self._pool.submit(writer.write_table, rows, row_group_size=_ROWS_PER_GROUP)
            )
        self._wait(_GROUPS_IN_FLIGHT)

    def _wait(self, in_flight: int) -> None:
        """Wait until no more than so many row groups are being written. Raises InputError: one cannot be."""
        while len(self._in_flight) > in_flight:
            try:
                self._in_flight.popleft().result()
            except OSError as error:
                raise InputError(f"{self._out}: cannot be written: {error.strerror or error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for writer in self._writers.values():
            with suppress(OSError):  # a full disk, which has been told of
                writer.close()
        self._staged.close()


_FEW_VALUES: Final = ("layer", "kv_head", "sampling_id", "position_octave")


def check_output(out: Path, *, force: bool) -> None:
    """Raise OutputExistsError if `out` exists, unless `force` is set and it is empty, or a run and no more.

    Raises InputError: it is the working directory or above it, which no run can replace.
    """
    if not os.path.lexists(out):
        return
    if Path.cwd().resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out}: the working directory lies there; give a new name for the run")
    kept = _not_of_a_run(out)
    if kept is not None:
        what = "is not a run" if kept == out else f"holds {plain(kept.name, 80)} besides a run"
        raise OutputExistsError(f"{out}: {what}, so nothing overwrites it; give another name")
    if not force:
        raise OutputExistsError(f"{out}: exists; give another name, or --force to overwrite it")


def _not_of_a_run(out: Path) -> Path | None:
    """Return `out` where it is no run, else what a run does not have in it; None: nothing, or it is empty."""
    if out.is_symlink() or not out.is_dir():
        return out
    found = {path.name: path for path in out.iterdir()}
    if not found:
        return None
    try:
        content = parse_strict_json(read_regular(out / RUN_FILE))
    except (OSError, ValueError, RecursionError):
        return out
    if not isinstance(content, dict) or not {"kvtrace_version", "sources"} <= content.keys():
        return out
    own = {RUN_FILE, *(table.file_name for table in TABLES)}
    return next((path for name, path in sorted(found.items()) if name not in own), None)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(kind) if values.type != kind else values
    return pa.array(values, type=kind)
