"""Files of served requests, of every tool that is read; scrapes, and the table of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from support.outcome_files import write_lines
from support.run_cli import kvtrace
from support.serving_files import (
    POLICY,
    aiperf_line,
    bench_result,
    eleven_lines,
    graded_line,
    guidellm_benchmark,
    guidellm_file,
    own_served,
    served_file,
    sglang_result,
)

from fuzz.odd import ODD, RAW, odd_json

if TYPE_CHECKING:
    import random

    from fuzz.bases import Bases

_METRICS = Path(__file__).parents[1] / "serving" / "files" / "vllm_metrics_after.prom"


def served(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into a file of served requests."""
    kind = random.choice(("own", "vllm", "sglang", "guidellm", "aiperf"))
    documents = {
        "own": ("s.jsonl", own_served("a", token_times_s=[0.5, 2.5], output_tokens=2)),
        "vllm": ("s.json", bench_result()),
        "sglang": ("s.json", sglang_result()),
        "guidellm": ("s.json", guidellm_file(guidellm_benchmark())),
        "aiperf": ("profile_export.jsonl", aiperf_line("a", 100.0)),
    }
    name, document = documents[kind]
    (folder / name).write_text(odd_json(random, document))
    if kind == "aiperf":
        write_lines(folder / "accuracy_export.jsonl", [graded_line("a", True)])
    return ("serving", f"v={folder / name}", "-o", folder / "out")


def scrapes(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a word of a real page of /metrics."""
    lines = _METRICS.read_text().splitlines()
    place = random.randrange(len(lines))
    words = lines[place].split(" ")
    words[random.randrange(len(words))] = random.choice((str(random.choice(ODD)), random.choice(RAW), "-1"))
    lines[place] = " ".join(words)
    (folder / "m.prom").write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    file = served_file(folder, [own_served("a")])
    return ("serving", f"v={file}", "--metrics", f"v={folder / 'm.prom'}", "-o", folder / "out")


def tables(_: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change the header or a request of a table, or a limit of its policy."""
    table, policy = folder / "t", folder / "policy.toml"
    file = served_file(folder, eleven_lines())
    metrics = ("--metrics", f"v={_METRICS}")
    assert kvtrace("serving", f"v={file}", *metrics, "--load", "open", "-o", table).returncode == 0
    lines = table.read_text().splitlines()
    text = POLICY
    if random.random() < 0.8:
        place = random.choice((0, random.randrange(len(lines))))
        lines[place] = odd_json(random, json.loads(lines[place])).replace("\n", " ")
        table.write_text("\n".join(lines) + "\n")
    else:
        words = text.split(" ")
        words[random.randrange(len(words))] = str(random.choice(ODD))
        text = " ".join(words)
    policy.write_text(text, encoding="utf-8", errors="surrogateescape")
    if random.random() < 0.2:
        return ("export-arrivals", table)
    return ("goodput", table, "--policy", policy)
