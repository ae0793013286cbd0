"""A tokenizer of words, digits and marks, with a chat template: what cases are fitted to in tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def prompt_text(prompt: dict[str, Any]) -> str:
    """Return what a prompt of a file of prompts becomes, the chat template's own 12 tokens included."""
    if "prompt" in prompt:
        return str(prompt["prompt"])
    return "<s> " * 8 + "".join(message["content"] for message in prompt["messages"]) + " <s>" * 4


def count_words(prompt: dict[str, Any], marks: Sequence[str] = ()) -> tuple[int, tuple[int | None, ...]]:
    """Return the tokens of a prompt, and those before each mark: each word, digit and mark is one."""
    text = prompt_text(prompt)
    places = [text.find(mark) for mark in marks]
    return num_words(text), tuple(None if at < 0 else num_words(text[:at]) for at in places)


def num_words(text: str) -> int:
    """Return how many words, digits and marks a text has."""
    return len(re.findall(r"<s>|\d|[^\W\d]+|[^\w\s]", text))
