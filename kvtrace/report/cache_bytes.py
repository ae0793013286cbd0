"""What each candidate's cache takes: bytes a token, over the layers and heads captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    totals: dict[tuple[str, str], int] = {}
    unknown = set()
    cursor = connection.execute(_LAYERS)
    names = [entry[0] for entry in cursor.description]
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        form = _form(row)
        if form is None:
            unknown.add(row["candidate"])
            continue
        key = row["candidate"], row["source"]
        size = form.bytes_per_token(row["head_dim_k"], row["num_heads"], row["head_dim_v"])
        totals[key] = totals.get(key, 0) + size
    by_candidate: dict[str, set[int]] = {}
    for (candidate, _), size in totals.items():
        by_candidate.setdefault(candidate, set()).add(size)
    return {
        name: sizes.pop() for name, sizes in by_candidate.items() if len(sizes) == 1 and name not in unknown
    }


def _form(row: dict[str, Any]) -> CacheFormat | None:
    if not row["is_quantized"]:
        return native(_ITEMSIZE[row["dtype"]])
    if row["kind"] not in ("online", "format"):
        return find_format(_STATIC_FP8)
    name = str(row["format"])
    return parse_format(name).in_layer(row["layer"]) if is_format(name) else None
