"""A run whose every name is an attack, or at least a nuisance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.trace.format import ModelRecord
from support.fabricate_run import fabricate_run, read_tables, run_record, source_record

SCRIPT = "</script><script>document.title='owned'</script>"
IMAGE = "<img src=x onerror=\"document.title='owned'\">"
QUOTES = "\"' onmouseover='document.title=1' ${1+1} {{7*7}} `"
REVERSED = "abc\u202edef\u2066\u200fghi"
LONG = "long " + "x" * 4_000
NAMES = (SCRIPT, IMAGE, QUOTES, REVERSED, LONG)


def hostile_run(folder: Path) -> Path:
    """Return the run of the shared query cases with its names exchanged."""
    tables = read_tables(Path(__file__).parents[1] / "queries" / "input")
    renamed: dict[str, dict[Any, str]] = {
        "source": {"day": SCRIPT},
        "workload": {"chat": IMAGE, "code": LONG},
        "candidate": {"shipped": QUOTES + IMAGE, "running": REVERSED + SCRIPT, "broken": LONG},
    }
    for rows in tables.values():
        for row in rows:
            for column, names in renamed.items():
                if row.get(column) in names:
                    row[column] = names[row[column]]
    for row in tables["candidates"]:
        row["artifact"] = f"/models/{IMAGE}/{SCRIPT}"
        row["note"] = QUOTES + SCRIPT
        row["calibrated_max_length"] = 2
        row["reason"] = row.get("reason") and IMAGE + REVERSED
    tables["layers"] = [
        {"source": SCRIPT, "layer": layer, "dtype": "bfloat16", "backend": IMAGE, "kv_cache_dtype": LONG}
        for layer in sorted({row["layer"] for row in tables["vectors"]})
    ]
    _give_magnitudes(tables)
    model = source_record().model.model_copy(update={"name": IMAGE + LONG})
    assert isinstance(model, ModelRecord)
    source = source_record(SCRIPT, model=model, path=f"/traces/{IMAGE}")
    return fabricate_run(folder / "hostile.run", tables, run_record(source))


def _give_magnitudes(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Move the codes to where bfloat16 has numbers of everyday size, so that every chart shows some."""
    for row in tables["vectors"]:
        row["absmax_code"] += 16_400
    for row in tables["scales"]:
        for limit in ("max_in_range_code", "max_unclipped_code"):
            row[limit] = row[limit] and row[limit] + 16_400
        row["covered_amax"] = row["covered_amax"] and 3.5
    for row in tables["cells"]:
        row["max_abs"] = 3.96875 if row["tensor"] == "k" else 3.03125  # codes 16,510 and 16,450
