"""A file of labelled prompts: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.plain_text import plain
from kvtrace.trace.fingerprint import chat_template_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KEYS: Final = ("prompt", "messages", "workload", "id", "max_tokens")
_MOST_NAMED: Final = 10
_MAX_BYTES: Final = 1_000_000_000
_MAX_LINE_BYTES: Final = 64_000_000
"""A million tokens of text take a tenth of it."""
_MAX_TOKENS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to come; either `prompt` or `messages` is given."""

    line: int
    workload: str
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    max_tokens: int | None = None
    """None: what the command line says."""
    id: str | None = None

    def job(self, max_tokens: int) -> dict[str, Any]:
        """Return it as a driver inside vLLM takes it. max_tokens: where it does not say itself."""
        return {
            "line": self.line,
            "workload": self.workload,
            "id": self.id,
            "max_tokens": self.max_tokens or max_tokens,
            **({"messages": self.messages} if self.messages else {"prompt": self.prompt}),
        }


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a file, in order; empty lines are passed over.

    Raises InputError: the file cannot be read or holds no prompt, or lines are bad: by number, with what was
    expected.
    """
    try:
        content = read_regular(path, _MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    prompts, faults = [], []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(number, line))
        except ValueError as error:
            faults.append(f"line {number}: {error}")
    if faults:
        named = "; ".join(faults[:_MOST_NAMED])
        more = f"; and {len(faults) - _MOST_NAMED:,} more lines" if len(faults) > _MOST_NAMED else ""
        raise InputError(f"{path}: {named}{more}")
    if not prompts:
        raise InputError(
            f'{path}: holds no prompt; expected lines such as {{"prompt": "…", "workload": "chat"}}'
        )
    return prompts


def require_chat_template(model: Path, prompts: Sequence[Prompt], file: Path) -> None:
    """Find out before a model is loaded whether its prompts can be made.

    Raises InputError: a prompt has messages, and the checkpoint directory `model` no chat template; its line
    in `file` is named. A model that is not here, or has no tokenizer of its own, is left to the engine.
    """
    first = next((one.line for one in prompts if one.messages is not None), None)
    if first is None or not (model / "tokenizer_config.json").is_file():
        return
    if chat_template_digest(model) is None and not any(model.glob("chat_template*")):
        raise InputError(
            f"{file}: line {first}: has messages, and {model} has no chat template to make a prompt of them; "
            "give it as prompt, or add chat_template.jinja to the model"
        )


def _prompt(number: int, line: bytes) -> Prompt:
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"has {len(line):,} bytes, expected at most {_MAX_LINE_BYTES:,}")
    try:
        fields = parse_strict_json(line)
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
    except UnicodeEncodeError as error:
        raise ValueError("has half of a surrogate pair, which is not text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError('is not a JSON object, expected {"prompt": …, "workload": …}')
    unknown = [plain(key, 80) for key in fields if key not in KEYS]
    if unknown:
        raise ValueError(f"has {', '.join(unknown[:_MOST_NAMED])}; known are {', '.join(KEYS)}")
    if ("prompt" in fields) == ("messages" in fields):
        raise ValueError('needs either "prompt" or "messages"')
    messages = fields.get("messages")
    max_tokens = fields.get("max_tokens")
    is_number = isinstance(max_tokens, int) and not isinstance(max_tokens, bool)
    if max_tokens is not None and not (is_number and 1 <= max_tokens <= _MAX_TOKENS):
        raise ValueError(f"max_tokens is {_shown(max_tokens)}, expected a number from 1 to {_MAX_TOKENS:,}")
    return Prompt(
        line=number,
        workload=_text(fields, "workload"),
        prompt=_text(fields, "prompt") if "prompt" in fields else None,
        messages=_messages(messages) if messages is not None else None,
        max_tokens=max_tokens,
        id=_text(fields, "id") if "id" in fields else None,
    )


def _text(fields: dict[str, Any], key: str) -> str:
    if key not in fields:
        raise ValueError(f"has no {key}, expected a text that is not empty")
    value = fields[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {_shown(value)}, expected a text that is not empty")
    return value


def _shown(value: Any) -> str:
    return plain(repr(value), 80)


def _messages(messages: Any) -> tuple[dict[str, Any], ...]:
    is_list = isinstance(messages, list) and messages
    if not is_list or any(not isinstance(m, dict) or not {"role", "content"} <= m.keys() for m in messages):
        raise ValueError('messages is expected to be a list of {"role": …, "content": …}')
    return tuple(messages)
