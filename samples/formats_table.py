"""The README's table of cache formats: `python samples/formats_table.py` replays the sample and prints it.

The numbers are those of the run: bytes of a token over all layers, SQNR over all values of K and of V, native
layers included.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import kvtrace
from kvtrace.candidates.coded import bytes_per_token, native_layers
from kvtrace.candidates.setup import DEFAULT_SETUP
from kvtrace.evaluation import replay, standard_request
from kvtrace.formats import FORMATS, CacheFormat

SAMPLE = Path(__file__).with_name("smollm2-135m.kvtrace")
CANDIDATE_OF = {"auto": "bf16", "fp8_e4m3": "unit"}
"""Formats that a run has under other names."""


def table() -> str:
    """Return the table in Markdown."""
    trace = kvtrace.open_trace(SAMPLE)
    with TemporaryDirectory() as folder:
        run = replay(standard_request([trace], cache_dtypes=FORMATS), Path(folder) / "run")
        rows = (
            kvtrace.open_run(run).query("compare_candidates").select("candidate", "tensor", "sqnr_db").rows()
        )
    sqnr = {(candidate, tensor): value for candidate, tensor, value in rows}
    lines = [
        "| cache dtype | bytes a token | less than bf16 | SQNR of K | of V | native layers | runs on |",
        "|---|--:|--:|--:|--:|---|---|",
    ]
    full = bytes_per_token(FORMATS["auto"], trace, frozenset())
    for name, form in FORMATS.items():
        native = native_layers(form, DEFAULT_SETUP, trace)
        size = bytes_per_token(form, trace, native)
        k, v = (_decibel(sqnr[CANDIDATE_OF.get(name, name), tensor]) for tensor in "kv")
        kept = ", ".join(map(str, sorted(native))) or "–"
        lines.append(f"| `{name}` | {size:,} | {full / size:.2f} × | {k} | {v} | {kept} | {_places(form)} |")
    return "\n".join(lines) + "\n"


def _decibel(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _places(form: CacheFormat) -> str:
    return ", ".join(dict.fromkeys(place.backend for place in form.runs_on))


if __name__ == "__main__":
    print(table(), end="")
