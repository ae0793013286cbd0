"""Scale artifacts with a changed header or JSON file, and configurations of models."""

from __future__ import annotations

import json
import shutil
import struct
from typing import TYPE_CHECKING

from fuzz.bases import CONFIG
from fuzz.odd import RAW, odd_json

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases


def artifacts(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change the header of an artifact's tensors, or one of its JSON files."""
    artifact = folder / "artifact"
    shutil.copytree(random.choice(bases.artifacts), artifact)
    file = random.choice([path for path in sorted(artifact.iterdir()) if path.is_file()])
    if file.suffix == ".json":
        file.write_text(odd_json(random, json.loads(file.read_text())))
    else:
        body = file.read_bytes()
        (length,) = struct.unpack("<Q", body[:8])
        text = odd_json(random, json.loads(body[8 : 8 + length])).encode()
        said = random.choice((*[len(text)] * 8, len(text) + 1, 10**7, 2**63))
        file.write_bytes(struct.pack("<Q", said) + text + body[8 + length :])
    commands = (
        ("scales", artifact), ("scales", artifact, "--json"), ("scales", artifact, "--trace", bases.counted),
        ("replay", bases.counted, "--scales", artifact, "-o", folder / "out"),
    )  # fmt: skip
    return random.choices(commands, weights=(4, 2, 2, 1))[0]


def model_configs(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Change a model's config.json."""
    model = folder / "model"
    model.mkdir()
    text = odd_json(random, CONFIG) if random.random() < 0.9 else random.choice(RAW)
    (model / "config.json").write_text(text)
    return ("capture", "plan", "--model", model)
