"""What a command printed and wrote, as parts that can be compared: texts, and values with paths."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable  # noqa: TC003 -- of a constant
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from same_as.page import page_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from same_as.commands import Command
    from same_as.side import Side

Parts = dict[str, Any]
"""Part → a text (str), or a value: what JSON can hold, in a list or a dict."""


def printed_parts(command: Command, code: int, stdout: bytes, stderr: bytes, side: Side) -> Parts:
    """Return `exit`, `stderr` and `stdout` of a command that ended; stdout that is no JSON stays text."""
    out = side.plain(stdout)
    return {
        "exit": {"code": code},
        "stderr": side.plain(stderr).decode(errors="replace"),
        "stdout": _READ[command.reads](out),
    }


def made_files(command: Command, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every file that the command should have made and did."""
    for name in command.makes:
        path = folder / name
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        yield from ((str(one.relative_to(folder)), one) for one in files if one.is_file())


def file_parts(name: str, content: bytes, side: Side) -> Parts:
    """Return what a file says. Raises ValueError: its content is not what its name says."""
    kind = name.rpartition(".")[2]
    if kind == "parquet":
        return {"table": _plain(table_values(content), side)}
    if kind == "safetensors":
        return {"tensors": tensor_values(content)}
    if kind == "png":
        return {"bytes": {"is_png": content.startswith(b"\x89PNG")}}  # the same chart lies beside it as SVG
    text = side.plain(content).decode()
    if kind == "html":
        return page_parts(text)
    return {"json": json.loads(text)} if kind == "json" else {"text": text}


def table_values(content: bytes) -> dict[str, Any]:
    """Return a Parquet table as column → type and rows. NaN is a text, so that it equals itself."""
    table = pq.read_table(io.BytesIO(content))
    return {
        name: {"type": str(table.schema.field(name).type), "rows": [_equal_to_itself(one) for one in column]}
        for name, column in table.to_pydict().items()
    }


def tensor_values(content: bytes) -> dict[str, Any]:
    """Return a safetensors file as name → dtype, shape and its bytes in hex; `__metadata__` as it is.

    Source: the format: 8 bytes of length, a JSON header with offsets into what follows it.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    found: dict[str, Any] = {"__metadata__": header.pop("__metadata__", {})}
    for name, one in header.items():
        first, end = one.pop("data_offsets")
        found[name] = one | {"bytes": content[start + first : start + end].hex()}
    return found


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _json_or_text(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return _text(content)


def _rows(content: bytes) -> dict[str, Any]:
    """Return the columns, which a result without rows has too, and the rows."""
    reader = csv.DictReader(io.StringIO(_text(content), newline=""))
    return {"columns": dict.fromkeys(reader.fieldnames or (), ""), "rows": list(reader)}


_READ: Final[dict[str, Callable[[bytes], Any]]] = {"text": _text, "json": _json_or_text, "csv": _rows}


def _equal_to_itself(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _plain(value: Any, side: Side) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one, side) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, side) for one in value]
    return side.plain(value.encode()).decode() if isinstance(value, str) else value
