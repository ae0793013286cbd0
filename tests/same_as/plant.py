"""Writes faulty traces and artifacts with the code of the commit compared with: `plant.py OUT`.

It runs with that commit's tests on its path, and takes from them only what `tests/incidents` has had from
1d47fea on: `all_incidents`, `BASES`, `new_bench`, and a bench's `write`, `artifacts` and `against`.
Prints a line of JSON per fault.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from incidents import all_incidents
from incidents.base import BASES
from incidents.bench import new_bench

HEALTHY = "not-the-scales"


def main(out: str) -> None:
    """Plant the first incident of every set of causes, each with a seed of its own."""
    seen = set()
    for number, one in enumerate(all_incidents()):
        causes = (one.seen_by, *sorted(one.causes))
        if causes in seen:
            continue
        seen.add(causes)
        name = re.sub("[^a-z0-9]+", "-", one.name.lower()).strip("-")
        folder = Path(out) / name
        folder.mkdir(parents=True)
        bench = new_bench(number, folder, BASES[number % len(BASES)])
        one.plant(bench)
        bench.write("incident")
        described = {
            "name": name,
            "num_causes": len(one.causes),
            "artifacts": [path.name for path in bench.artifacts],
            "against": bench.against and bench.against.name,
        }
        print(json.dumps(described), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
