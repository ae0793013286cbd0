"""Files that say what is wanted: policies, serving manifests and prompts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from fuzz.bases import MANIFEST, POLICY
from fuzz.odd import ODD, RAW, odd_json

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases

PROMPTS: Final = (
    {"prompt": "Once upon a time", "workload": "chat", "max_tokens": 6, "id": "a-1"},
    {"messages": [{"role": "user", "content": "Name three trees."}], "workload": "code"},
)


def policies(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value, or text that is no TOML, into a policy."""
    policy = folder / "policy.toml"
    lines = POLICY.splitlines()
    place = random.randrange(1, len(lines))
    key = lines[place].partition(" = ")[0]
    value = random.choice(ODD)
    lines[place] = random.choice(
        (
            f"{key} = {json.dumps(value)}", f"{key} = {json.dumps(value)}", lines[place] * 2, "[" * 3000,
            f"{key} = nan", f"{key} = {random.choice(RAW)}", "x = 1", "",
        )
    )  # fmt: skip
    policy.write_text("\n".join(lines))
    return ("check", bases.run, "--policy", policy, "--candidate", bases.scales.name)


def manifests(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into a serving manifest."""
    manifest = folder / "manifest.json"
    manifest.write_text(odd_json(random, MANIFEST))
    return ("replay", bases.counted, "-o", folder / "out", "--manifest", manifest)


def prompts(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into a line of prompts. Sound ones end at the interpreter, which is not there."""
    file = folder / "prompts.jsonl"
    lines = [json.dumps(prompt) for prompt in PROMPTS]
    place = random.randrange(len(lines))
    lines[place] = odd_json(random, PROMPTS[place]) if random.random() < 0.9 else random.choice(RAW)
    file.write_text("\n".join(lines))
    options = ("--model", "m", "--prompts", file, "-o", folder / "out", "--vllm-python", folder / "none")
    return ("capture", "run", *options)
