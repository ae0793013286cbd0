"""The evidence of a decision: what other commands wrote as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.decide_files import FP8, Case, check_outcome

from fuzz.odd import odd_json

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases


def evidence(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into a comparison of quality, a capacity report, a check or a manifest."""
    arguments = Case(folder, check=check_outcome("clipped_frac")).files()
    name = random.choice(("quality.json", "capacity.json", "check.json", f"{FP8}.json"))
    path = folder / name
    path.write_text(odd_json(random, json.loads(path.read_text())))
    if name == f"{FP8}.json":
        file = folder / f"{FP8}-0.jsonl"
        return ("serving", f"{FP8}={file}", "--manifest", f"{FP8}={path}", "-o", folder / "out")
    return tuple(arguments)
