"""The reference pages that are made from the code: a run's tables, the queries, the cache formats.

Write them anew with `python -m kvtrace.reference docs`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.formats import FORMATS
from kvtrace.query.library import all_queries
from kvtrace.runs.schema import TABLES
from kvtrace.runs.table import RUN_SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.formats import CacheFormat
    from kvtrace.query.library import Query
    from kvtrace.runs.table import Table


def reference_pages() -> dict[str, str]:
    """Return file name → content, in Markdown."""
    return {
        "run-tables.md": "\n".join(_run_tables(TABLES)) + "\n",
        "queries.md": "\n".join(_queries(all_queries())) + "\n",
        "cache-formats.md": "\n".join(_formats(FORMATS.values())) + "\n",
    }


def _run_tables(tables: Iterable[Table]) -> Iterator[str]:
    yield "# The tables of a run"
    yield ""
    yield f"Run format {RUN_SCHEMA_VERSION}: a directory of Parquet files and `run.json`. It holds sums and"
    yield "maxima, never ratios, so SQL is right at any grouping. What was not measured is NULL or an absent"
    yield "row, never zero. Made from `kvtrace/runs/schema.py`."
    for table in tables:
        since = f" Since 1.{table.since}." if table.since else ""
        yield from ("", f"## {table.name}", "", f"One row per {_escaped(table.grain)}.{since}", "")
        yield from ("| column | type | meaning |", "|---|---|---|")
        for column in table.columns:
            added = f" (since 1.{column.since})" if column.since and column.since > table.since else ""
            yield f"| `{column.name}` | {column.type_name.rstrip('_')} | {_escaped(column.meaning)}{added} |"


def _queries(queries: Iterable[Query]) -> Iterator[str]:
    yield "# The queries"
    yield ""
    yield "`kvtrace query RUN NAME --param KEY=VALUE` runs one; each also runs by hand in the duckdb shell,"
    yield "as its file says. Made from the headers of `queries/*.sql`."
    for query in queries:
        yield from ("", f"## {query.name}", "", f"{_escaped(query.title)} Grain: {_escaped(query.grain)}", "")
        if query.parameters:
            yield from ("| parameter | takes | without it | meaning |", "|---|---|---|---|")
            for name, one in query.parameters.items():
                yield f"| `{name}` | {_escaped(one.takes)} | {one.default or '–'} | {_escaped(one.meaning)} |"
            yield ""
        yield from ("| column | meaning |", "|---|---|")
        yield from (f"| `{name}` | {_escaped(meaning)} |" for name, meaning in query.columns.items())


def _formats(forms: Iterable[CacheFormat]) -> Iterator[str]:
    yield "# Cache formats"
    yield ""
    yield "What `--cache-dtype` takes; K and V apart as `k=NAME,v=NAME`, layers apart as"
    yield "`fp8/0,1,29:auto/4-7:nvfp4`, or a checkpoint whose recipe it is. Bytes are of one token in one KV"
    yield "head: K, V and their scales. Made from `kvtrace/formats/`, where each rule is, and its source."
    yield "`nvfp4` and `nvfp4_4over6` were written from vLLM's sources and not run against a GPU. In these"
    yield "sizes of octave all values are rotary. Refused: `fp8_ds_mla`, `nvfp4_ds_mla`, plug-ins' names."
    yield from ("", "| cache dtype | of | D = 64 | 128 | scales | native layers | runs on | know |")
    yield "|---|---|--:|--:|---|---|---|---|"
    for form in forms:
        sizes = [str(form.slot_bytes(dim)) if form.why_not(dim) is None else "–" for dim in (64, 128)]
        scales = "k_scale, v_scale" if form.uses_scales else "its own" if not form.is_native else "–"
        native = "first 2, last 2; none of hybrids" if form.keeps_boundary_layers else "–"
        places = "; ".join(map(str, form.runs_on))
        facts = "; ".join(fact.text for fact in form.facts) or "–"
        cells = (f"`{form.name}`", form.product, *sizes, scales, native, places, facts)
        yield f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Return a text for a table's cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for file_name, content in reference_pages().items():
        Path(sys.argv[1], file_name).write_text(content, encoding="utf-8")
