"""A model's own tokenizer and chat template, asked in vLLM's environment."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from kvtrace.errors import CaptureError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DRIVER: Final = "kvtrace_capture.tokens"
_SHOWN_CHARS: Final = 300


class Counted(NamedTuple):
    """A prompt as the engine gets it."""

    num_tokens: int
    """Special tokens and the chat template's own included."""
    before: tuple[int | None, ...]
    """Tokens before the first place of each mark; None: it is not in the prompt."""


class Tokenizer:
    """A model's tokenizer; made by `tokenizer_of`."""

    def __init__(self, model: str, process: subprocess.Popen[str], log: IO[bytes]) -> None:
        self._model, self._process, self._log = model, process, log

    def count(self, prompt: dict[str, Any], marks: Sequence[str] = ()) -> Counted:
        """Return how many tokens a prompt has, and how many stand before each mark.

        prompt: {"prompt": text} or {"messages": [{"role", "content"}]}.
        Raises CaptureError: the chat template refuses it, or the tokenizer's process has ended.
        """
        found = self.ask({**prompt, "marks": list(marks)})
        return Counted(found["num_tokens"], tuple(found["before"]))

    def token_ids(self, prompt: dict[str, Any]) -> list[int]:
        """Return a prompt's token ids as the engine gets them. Raises CaptureError as `count` does."""
        return list(self.ask({**prompt, "ids": True})["ids"])

    def ask(self, request: dict[str, Any] | None) -> dict[str, Any]:
        """Return the next reply, to a request if there is one. Raises CaptureError as `count` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # no reply will come, which is told below
            if request is not None:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": self._last_words()}
        if "error" in reply:
            reason = plain(str(reply["error"]).partition("\n")[0], _SHOWN_CHARS)
            raise CaptureError(
                f"{self._model}: its tokenizer or chat template cannot be used: {reason}; "
                "name a model that vLLM serves; one without a chat template takes prompts as text"
            )
        return dict(reply)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its process has ended"


@contextmanager
def tokenizer_of(model: str, python: Path) -> Iterator[Tokenizer]:
    """Yield the tokenizer of a model: a folder, or a name as vLLM takes it.

    python: that of vLLM's environment. Raises CaptureError: it has no tokenizer that can be loaded.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 -- the interpreter that the user named
            [python, "-m", DRIVER, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
        )
        try:
            tokenizer = Tokenizer(model, process, log)
            tokenizer.ask(None)  # it says when it is ready
            yield tokenizer
        finally:
            process.kill()
            process.communicate()
