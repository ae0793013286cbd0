"""Prompts as a model's own tokenizer and chat template read them: `python -m kvtrace_capture.tokens MODEL`.

`kvtrace.capture.tokenizer` starts it in vLLM's environment. Each line of JSON on stdin is a prompt,
{"prompt": text} or {"messages": [...]}, and gets a line: {"num_tokens", "before"}, or {"error": text}.
"marks": texts in it; `before` has the tokens before the first place of each, None where it is not there.
"ids": true for the token ids too. The engine is not loaded. The first line says {"ready": true}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(model: str) -> None:
    """Answer until stdin ends. Exits with 1 after an error line if the tokenizer cannot be loaded."""
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as replies:
        os.dup2(2, 1)  # what libraries print is no reply

        def reply(content: dict[str, Any]) -> None:
            replies.write(json.dumps(content) + "\n")

        try:
            from transformers import AutoTokenizer  # type: ignore[import-not-found]

            tokenizer = AutoTokenizer.from_pretrained(model)
        except Exception as error:  # noqa: BLE001 -- whatever a tokenizer's own code raises is told
            reply({"error": f"{type(error).__name__}: {error}"})
            sys.exit(1)
        reply({"ready": True})
        for line in sys.stdin:
            try:
                reply(_counted(tokenizer, json.loads(line)))
            except Exception as error:  # noqa: BLE001 -- as do templates
                reply({"error": f"{type(error).__name__}: {error}"})


def _counted(tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    is_chat = "messages" in request
    text: str = (
        tokenizer.apply_chat_template(request["messages"], add_generation_prompt=True, tokenize=False)
        if is_chat
        else request["prompt"]
    )

    def encode(part: str) -> list[int]:
        # A template writes the special tokens itself.
        return list(tokenizer(part, add_special_tokens=not is_chat)["input_ids"])

    token_ids = encode(text)
    places = [text.find(mark) for mark in request.get("marks", ())]
    found: dict[str, Any] = {
        "num_tokens": len(token_ids),
        "before": [None if place < 0 else len(encode(text[:place])) for place in places],
    }
    return found | ({"ids": token_ids} if request.get("ids") else {})


if __name__ == "__main__":
    main(sys.argv[1])
