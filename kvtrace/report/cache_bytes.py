"""What each candidate's cache takes: bytes a token, over the layers and heads captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import IntegrityError
from kvtrace.formats import find_format, parse_format
from kvtrace.formats.layered import is_format
from kvtrace.formats.native import native

if TYPE_CHECKING:
    from kvtrace.formats import CacheFormat

_ITEMSIZE: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
_STATIC_FP8: Final = "fp8_e4m3"
"""Every FP8 format over loaded scales takes a byte a value."""
_LAYERS: Final = """
SELECT candidate, kind, format, source, layer, bool_or(is_quantized) AS is_quantized,
  count(DISTINCT kv_head) AS num_heads, any_value(dtype) AS dtype,
  any_value(head_dim_k) AS head_dim_k, any_value(head_dim_v) AS head_dim_v
FROM scales JOIN candidates USING (candidate) JOIN layers USING (source, layer)
GROUP BY ALL
ORDER BY ALL
"""


def bytes_per_token(connection: Any) -> dict[str, int]:
    """Return candidate → bytes of one token: K, V and their scales, over the layers and heads captured.

    connection: with a run's views. Left out: a format whose bytes are not known, and a candidate whose
    traces differ in them.
    """
    by_candidate: dict[str, set[int | None]] = {}
    for (candidate, _), layers in _bytes_by_layer(connection).items():
        sizes = list(layers.values())
        by_candidate.setdefault(candidate, set()).add(
            None if None in sizes else sum(size for size in sizes if size is not None)
        )
    totals = {name: sizes.pop() for name, sizes in by_candidate.items() if len(sizes) == 1}
    return {name: size for name, size in totals.items() if size is not None}


def bytes_by_layer(connection: Any, candidate: str) -> dict[int, int] | None:
    """Return layer → bytes of one token under a candidate; None as `bytes_per_token` leaves it out."""
    found = [layers for (name, _), layers in _bytes_by_layer(connection).items() if name == candidate]
    known = {layer: size for layer, size in found[0].items() if size is not None} if found else {}
    return known if found and all(layers == known for layers in found) else None


def _bytes_by_layer(connection: Any) -> dict[tuple[str, str], dict[int, int | None]]:
    """Return (candidate, trace) → layer → bytes of one token; None: not known."""
    found: dict[tuple[str, str], dict[int, int | None]] = {}
    cursor = connection.execute(_LAYERS)
    names = [entry[0] for entry in cursor.description]
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        form = _form(row)
        layers = found.setdefault((row["candidate"], row["source"]), {})
        layers[row["layer"]] = (
            None
            if form is None
            else form.bytes_per_token(row["head_dim_k"], row["num_heads"], row["head_dim_v"])
        )
    return found


def _form(row: dict[str, Any]) -> CacheFormat | None:
    if not row["is_quantized"]:
        if row["dtype"] not in _ITEMSIZE:
            raise IntegrityError(f"layers.parquet: layer {row['layer']} has no dtype of a trace")
        return native(_ITEMSIZE[row["dtype"]])
    if row["kind"] not in ("online", "format"):
        return find_format(_STATIC_FP8)
    name = str(row["format"])
    return parse_format(name).in_layer(row["layer"]) if is_format(name) else None
