"""What stands in for vLLM's Python: it is looked at as that one is, and runs a file of ours in its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from support import answering, counting

ANSWERING: Final = Path(answering.__file__)
"""Answers and log-probabilities of `kvtrace quality run`."""
COUNTING: Final = Path(counting.__file__)
"""The tokenizer of `kvtrace fixture make`: each word, digit and mark is a token."""


def stand_in(folder: Path, script: Path = ANSWERING) -> Path:
    """Return a Python in a folder that does as `script`, and captures as `faults.stand_in` does."""
    from kvtrace.version import __version__

    look = json.dumps({"vllm": "0.32", "has_vllm": True, "kvtrace": __version__, "has_plug_in": True})
    path, python, tests = folder / "python", sys.executable, script.absolute().parents[1]
    lines = (
        "#!/bin/sh",
        'case "$1 $2" in',
        f"-c*) echo '{look}' ;;",
        f"*offline) PYTHONPATH='{tests}':\"$PYTHONPATH\" exec '{python}' -m faults.stand_in \"$3\" ;;",
        f"*) exec '{python}' '{script.absolute()}' \"$3\" ;;",
        "esac",
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def answers_to(fixture: Path, folder: Path) -> Path:
    """Write what `answering` needs: a model, and answers of which FP8 gets one wrong. Return the folder."""
    (folder / "model").mkdir(parents=True)
    (folder / "model/config.json").write_text("{}")
    right = {
        case["id"]: json.dumps(case["expected"] or {"error": "not_found"})
        for case in map(json.loads, (fixture / "cases.jsonl").read_text().splitlines())
    }
    wrong = {**right, "record-en-short-end-0": right["record-en-short-end-0"].replace('"unit"', '"Unit"')}
    (folder / "answers.json").write_text(json.dumps({"bfloat16": right, "fp8": wrong}))
    stand_in(folder)
    return folder
