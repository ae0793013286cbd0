"""The tokens of a job's prompts, as the engine gets them."""

from __future__ import annotations

from typing import Any


def token_ids_of(prompt: dict[str, Any], tokenizer: Any) -> list[int]:
    """Return the token ids of a prompt, {"prompt": text} or {"messages": [...]} for the chat template."""
    if "messages" in prompt:
        found = tokenizer.apply_chat_template(
            prompt["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
    else:
        found = tokenizer.encode(prompt["prompt"])
    return list(found)


def check_length(prompt: dict[str, Any], num_tokens: int, limit: int) -> None:
    """Raise ValueError, which names the prompt's line, where it leaves no room for an answer."""
    if num_tokens >= limit:
        raise ValueError(
            f"line {prompt['line']}: its prompt has {num_tokens:,} tokens; with an answer the model "
            f"takes {limit:,} at most (max_model_len)"
        )
