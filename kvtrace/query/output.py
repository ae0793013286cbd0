"""A result as a table for people, or as CSV, JSON or Parquet for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.query.execute import Result

_CELL_WIDTH: Final = 40
_SIGNIFICANT_DIGITS: Final = 4


def as_table(result: Result, width: int | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the result as aligned text, and the columns left out because `width` was too small.

    width: columns of the terminal; None: no limit. Control characters are shown as escapes, NULL as NULL.
    """
    cells = [[_cell(value) for value in row] for row in result.rows]
    names = [_pieces(plain(name, _CELL_WIDTH)) for name in result.columns]
    widths = [max(map(len, [*pieces, *(row[index] for row in cells)])) for index, pieces in enumerate(names)]
    shown = _that_fit(widths, width)
    numeric = [any(isinstance(row[index], int | float) for row in result.rows) for index in range(shown)]
    headers = [_wrapped(pieces, size) for pieces, size in zip(names[:shown], widths, strict=False)]
    height = max(map(len, headers))
    headers = [[""] * (height - len(header)) + header for header in headers]
    lines = [_line(level, widths, numeric) for level in zip(*headers, strict=True)]
    lines.append("  ".join("─" * size for size in widths[:shown]))
    lines += [_line(row, widths, numeric) for row in cells]
    return "\n".join(lines) + "\n", result.columns[shown:]


def as_csv(result: Result) -> str:
    """Return the result as CSV with a header; NULL is an empty field, a float its shortest exact form.

    Like DuckDB's own shell: true and false in lower case.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_csv_value(value) for value in row] for row in result.rows)
    return text.getvalue()


def as_json(result: Result) -> str:
    """Return the result as a JSON array of objects; a float that is no number becomes null."""
    records = [{name: _json_value(value) for name, value in record.items()} for record in result.records()]
    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_parquet(result: Result) -> bytes:
    """Return the result as the content of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = list(zip(*result.rows, strict=True)) or [() for _ in result.columns]
    table = pa.Table.from_arrays([pa.array(column) for column in columns], names=list(result.columns))
    file = pa.BufferOutputStream()
    pq.write_table(table, file)
    content: bytes = file.getvalue().to_pybytes()
    return content


def _csv_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.{_SIGNIFICANT_DIGITS}g}"
    return plain(str(value), _CELL_WIDTH)


def _pieces(name: str) -> list[str]:
    """Return a column's name cut after its underscores, where a header may break."""
    parts = name.split("_")
    return [f"{part}_" for part in parts[:-1]] + parts[-1:]


def _wrapped(pieces: Sequence[str], width: int) -> list[str]:
    """Return the pieces in as few lines of `width` as they need; each of them fits."""
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return lines


def _that_fit(widths: Sequence[int], width: int | None) -> int:
    """Return how many leading columns fit; at least one."""
    if width is None:
        return len(widths)
    ends = accumulate(size + 2 for size in widths)
    return max(sum(end - 2 <= width for end in ends), 1)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    aligned = [
        cell.rjust(size) if right else cell.ljust(size)
        for cell, size, right in zip(cells, widths, numeric, strict=False)
    ]
    return "  ".join(aligned).rstrip()


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    return value if isinstance(value, str | int | bool | None) else str(value)
