"""What stands in for vLLM in tests of `kvtrace quality run`: answers from a file, on the driver's terms.

`python answering.py EVENTS_FD`: see `kvtrace_capture.answers`. The engine's arguments say how it behaves:
`answers`: a file of {dtype: {id: text}}; `refused`: dtypes that do not start; `dies_after`: answers, once;
`served`: what the layers' caches really are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 12


def top(dtype: str, name: str, step: int, token: int, most: int) -> list[Any]:
    """Return log-probabilities of a step: the same of each BF16, a little other ones of another cache."""
    digest = hashlib.sha256(f"{name}/{step}".encode()).digest()
    logits = [byte / 64 for byte in digest[:VOCABULARY]]
    logits[token % VOCABULARY] += 4
    if dtype != "bfloat16":
        logits = [logit + ((step + place) % 3) / 10 for place, logit in enumerate(logits)]
    total = math.log(sum(map(math.exp, logits)))
    ranked = sorted(((place, logit - total) for place, logit in enumerate(logits)), key=lambda one: -one[1])
    return [logits[token % VOCABULARY] - total, [list(one) for one in ranked[:most]]]


def main(events_fd: int) -> None:
    events = os.fdopen(events_fd, "w", buffering=1)
    job = json.loads(sys.stdin.readline())
    engine, dtype = job["engine"], job["engine"]["kv_cache_dtype"]
    if dtype in engine.get("refused", ()):
        raise ValueError(f"this machine has no {dtype} cache")
    served = engine.get("served", dtype if dtype != "bfloat16" else "auto")
    facts = {"vllm": "0.32", "dtype": "bfloat16", "backends": ["STAND_IN"], "cache_dtypes": [served]}
    Path(job["facts"]).write_text(json.dumps(facts))
    events.write(json.dumps({"engine": facts, "total": 2 * len(job["prompts"])}) + "\n")
    texts = json.loads(Path(engine["answers"]).read_text())[dtype]
    answers, scores = Path(job["answers"]), Path(job["scores"])
    done = lines(answers)
    with answers.open("a") as file:
        for number, one in enumerate(one for one in job["prompts"] if one["id"] not in done):
            if number == engine.get("dies_after") and not done:
                file.write('{"id": "half a li')
                file.close()
                raise RuntimeError("killed")
            token_ids = [ord(char) % VOCABULARY for char in texts[one["id"]]]
            line = {
                "id": one["id"],
                "answer": texts[one["id"]],
                "output_tokens": len(token_ids),
                "prompt_token_ids": [ord(char) for char in json.dumps(one.get("messages"))],
                "token_ids": token_ids,
                "top": [top(dtype, one["id"], n, t, job["top"]) for n, t in enumerate(token_ids)],
            }
            file.write(json.dumps(line) + "\n")
            events.write(json.dumps({"done": number + 1}) + "\n")
    taught, scored = lines(Path(job["teacher"])), lines(scores)
    with scores.open("a") as file:
        for one in job["prompts"]:
            if one["id"] not in scored:
                token_ids = taught[one["id"]]["token_ids"]
                tops = [top(dtype, one["id"], n, t, job["top"]) for n, t in enumerate(token_ids)]
                file.write(json.dumps({"id": one["id"], "top": tops}) + "\n")


def lines(path: Path) -> dict[str, Any]:
    return (
        {line["id"]: line for line in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
