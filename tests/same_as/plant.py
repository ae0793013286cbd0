"""Writes faulty traces and artifacts with the code of the commit compared with: `plant.py OUT [NAME…]`.

It runs with that commit's tests on its path, and takes from them only what `tests/incidents` has had from
1d47fea on: `all_incidents`, `BASES`, `new_bench`, and a bench's `write`, `artifacts` and `against`.
Prints a line of JSON per fault.
"""

from __future__ import annotations

import json
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

from incidents import all_incidents
from incidents.base import BASES
from incidents.bench import new_bench

from kvtrace.trace.format import TRACE_FILE, TraceRecord, seal, unseal


def main(out: str, *names: str) -> None:
    """Plant the first incident of every set of causes, each with a seed of its own.

    names: patterns of a part of the names of those wanted; all.
    """
    seen = set()
    for number, one in enumerate(all_incidents()):
        causes = (one.seen_by, *sorted(one.causes))
        if causes in seen:
            continue
        seen.add(causes)
        name = re.sub("[^a-z0-9]+", "-", one.name.lower()).strip("-")
        if names and not any(fnmatch(name, f"*{part}*") for part in names):
            continue
        folder = Path(out) / name
        folder.mkdir(parents=True)
        bench = new_bench(number, folder, BASES[number % len(BASES)])
        one.plant(bench)
        _on_its_own_device(bench.write("incident"), bench.backend)
        described = {
            "name": name,
            "num_causes": len(one.causes),
            "artifacts": [path.name for path in bench.artifacts],
            "against": bench.against and bench.against.name,
        }
        print(json.dumps(described), flush=True)


def _on_its_own_device(trace: Path, backend: str) -> None:
    """Let the trace say that a GPU's backend ran on a GPU; benches of earlier commits say `cpu` of all."""
    file = trace / TRACE_FILE
    record = unseal(file.read_bytes(), TraceRecord)
    device = "cpu" if backend == "CPU_ATTN" else "cuda"
    engine = record.engine.model_copy(update={"device": device})
    file.write_text(seal(record.model_copy(update={"engine": engine}), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
