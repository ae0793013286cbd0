"""What the fixture, a quality run and a comparison of log-probabilities read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from support.outcome_files import own_line, write_lines
from support.run_cli import kvtrace

from fuzz.odd import RAW, odd_json
from fuzz.of_runs import odd_table
from fuzz.of_settings import PROMPTS
from kvtrace.quality.run.score_table import BASELINE_KEY, SCHEMA

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases

_RECORD: Final = {"asset": "AX-104", "revision": "B", "nominal_torque": 12.5, "unit": "N.m"}
_MODES: Final = ("forced", "free")


def judged(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into a key of cases, or into an answer to them."""
    content: dict[str, list[Any]] = {
        "cases.jsonl": [{"id": "a", "expected": _RECORD}, {"id": "b", "expected": None}],
        "answers.jsonl": [{"id": "a", "answer": json.dumps(_RECORD)}, {"id": "b", "answer": "{}"}],
    }
    odd = random.choice(sorted(content))
    for name, documents in content.items():
        lines = [json.dumps(document) for document in documents]
        if name == odd:
            lines[0] = odd_json(random, documents[0]) if random.random() < 0.9 else random.choice(RAW)
        (folder / name).write_text("\n".join(lines) + "\n")
    return (
        *("fixture", "judge", folder / "cases.jsonl", folder / "answers.jsonl"),
        *("--variant", "a", "-o", folder / "out"),
    )


def asked(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into the prompts of a quality run. Sound ones end at the missing interpreter."""
    file = folder / "prompts.jsonl"
    lines = [json.dumps({"id": "b-2", **prompt}) for prompt in PROMPTS]
    place = random.randrange(len(lines))
    lines[place] = odd_json(random, json.loads(lines[place]))
    file.write_text("\n".join(lines))
    return (
        *("quality", "run", "--model", "m", "--variant", "bf16", "--variant", "bf16", "--prompts", file),
        *("--vllm-python", folder / "none", "-o", folder / "out"),
    )


def scores(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a column of a table of log-probabilities."""
    rows = [
        {
            "variant": variant,
            "mode": mode,
            "id": f"{name}",
            "step": step,
            "position": 10 + step,
            "logprob": -1.0,
            "delta": 0.01 * step,
            "is_flip": False,
            "kl": 0.001,
        }
        for variant in ("bf16-b", "fp8")
        for mode in _MODES
        for name in range(6)
        for step in range(3)
    ]
    file, table = folder / "scores.parquet", folder / "t"
    content = pa.Table.from_pylist(rows, SCHEMA.with_metadata({BASELINE_KEY: b"bf16-a"}))
    pq.write_table(odd_table(random, content), file)
    answered = [own_line(f"{n}", variant=one) for n in range(6) for one in ("bf16-a", "bf16-b", "fp8")]
    outcomes = write_lines(folder / "o.jsonl", answered)
    assert kvtrace("outcomes", outcomes, "-o", table).returncode == 0
    return ("quality", "compare", table, "--margin", "0.1", "--floor", "0.5", "--scores", file)
