"""The table of scores that `kvtrace quality run` writes, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import OutcomesError
from kvtrace.files.regular import open_regular
from kvtrace.plain_text import plain
from kvtrace.quality.run.score_table import BASELINE_KEY, SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MAX_ROWS: Final = 20_000_000
"""A million answers of 20 tokens under one variant: 1 GB of memory."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Steps of one mode; every array is [steps]."""

    variant: NDArray[np.int64]
    """Index into the names of all variants."""
    request: NDArray[np.int64]
    """Index of the request, the same in every variant."""
    step: NDArray[np.int64]
    position: NDArray[np.int64]
    logprob: NDArray[np.float64]
    """In nats, as are `delta` and `kl`; NaN where answers differ, `kl` also where it is not bounded."""
    delta: NDArray[np.float64]
    is_flip: NDArray[np.bool_]
    kl: NDArray[np.float64]

    def of(self, chosen: NDArray[np.bool_]) -> Scores:
        """Return the steps that are chosen."""
        return Scores(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A table of scores."""

    path: Path
    baseline: str
    variants: tuple[str, ...]
    """All but the baseline."""
    forced: Scores
    free: Scores


def read_scores(path: Path) -> ScoreTable:
    """Return a table of scores.

    Raises OutcomesError: the file cannot be read, is no such table, or holds what none can hold.
    """
    try:
        with open_regular(path) as file, pq.ParquetFile(file) as parquet:
            schema = parquet.schema_arrow
            if not schema.equals(SCHEMA) or BASELINE_KEY not in (schema.metadata or {}):
                raise ValueError(
                    "is not a table of scores; expected the scores.parquet of kvtrace quality run"
                )
            if parquet.metadata.num_rows > MAX_ROWS:
                raise ValueError(f"has {parquet.metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}")
            table = parquet.read()
            baseline = schema.metadata[BASELINE_KEY].decode()
        return _table(path, baseline, table)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise OutcomesError(f"{path}: {plain(str(error), 300)}") from error


def _table(path: Path, baseline: str, table: pa.Table) -> ScoreTable:
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    variants, variant = _codes(columns["variant"])
    modes, mode = _codes(columns["mode"])
    _, request = _codes(columns["id"].dictionary_encode())
    found = Scores(
        variant,
        request,
        _numbers(columns["step"]),
        _numbers(columns["position"]),
        _reals(columns["logprob"]),
        _reals(columns["delta"]),
        np.asarray(columns["is_flip"].to_numpy(zero_copy_only=False), dtype=np.bool_),
        _reals(columns["kl"]),
    )
    if not set(modes) <= {"forced", "free"}:
        raise ValueError(f"has the modes {', '.join(modes)}, expected forced and free")
    if np.any(found.step < 0) or np.any(found.kl < -1e-6) or np.any(found.logprob > 1e-6):
        raise ValueError("has a step or a KL below 0, or a probability above 1: it is damaged")
    keys = (variant, mode, request, found.step)
    order = np.lexsort(keys)
    if np.any(np.all([key[order][1:] == key[order][:-1] for key in keys], axis=0)):
        raise ValueError("has a step of a request twice")
    by_mode = [found.of(mode == modes.index(one)) if one in modes else found.of(mode < 0)
               for one in ("forced", "free")]  # fmt: skip
    return ScoreTable(path, baseline, tuple(variants), *by_mode)


def _codes(column: Any) -> tuple[list[str], NDArray[np.int64]]:
    indices = np.asarray(column.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return column.dictionary.to_pylist(), indices


def _numbers(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _reals(column: Any) -> NDArray[np.float64]:
    """Return reals, NaN where the column has none. Raises ValueError: it has NaN or infinity itself."""
    found = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    if int(np.sum(~np.isfinite(found))) != column.null_count:
        raise ValueError("has a value that is not a number")
    return found
