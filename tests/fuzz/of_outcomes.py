"""Files of judged answers, of every tool that is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.outcome_files import (
    LM_EVAL_NAME,
    aiperf_files,
    inspect_log,
    inspect_sample,
    lm_eval_line,
    own_line,
    promptfoo_file,
    promptfoo_result,
)

from fuzz.odd import odd_json

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from fuzz.bases import Bases


def outcomes(bases: Bases, random: random.Random, folder: Path) -> tuple[object, ...]:
    """Put an odd value into a file of judged answers."""
    kind = random.choice(("own", "lm-eval", "inspect", "promptfoo", "aiperf"))
    documents = {
        "own": ("o.jsonl", own_line("a", tags={"language": "de"}, prompt_token_ids=[1, 2])),
        "lm-eval": (LM_EVAL_NAME, lm_eval_line(1, 1.0)),
        "inspect": ("o.json", inspect_log([inspect_sample(1, "C"), inspect_sample(2, "I")])),
        "promptfoo": ("o.json", promptfoo_file([promptfoo_result(0, True), promptfoo_result(1, False)])),
    }
    if kind == "aiperf":
        path = aiperf_files(folder, {"a": (True, False)}, {"a": {}, "b": {"error": {"type": "x"}}})
        file = random.choice((path, folder / "profile_export.jsonl"))
        first, _, rest = file.read_text().partition("\n")
        file.write_text(f"{odd_json(random, json.loads(first))}\n{rest}")
    else:
        name, document = documents[kind]
        path = folder / name
        path.write_text(odd_json(random, document))
    return ("outcomes", f"v={path}", "-o", folder / "out")
