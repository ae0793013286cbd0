"""One judged answer: what a tool's file says of it, and what the table of outcomes keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["pass", "fail", "malformed", "refused", "wrong_refusal", "timeout", "error", "unjudged"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""All but `pass` and `unjudged` are failures. Only `unjudged` is outside the denominator."""
MAX_OUTCOMES: Final = 2_000_000
"""Of a table: what a reader takes the memory for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as a tool's file has it."""

    id: str
    """The user's own, or one made of what the tool numbers: never a position in the file."""
    outcome: Kind
    task: str = ""
    repetition: int = 0
    cluster: str | None = None
    """Document, conversation or repeated prompt that it shares with others; None: it stands alone."""
    reason: str | None = None
    output_tokens: int | None = None
    tags: tuple[tuple[str, str], ...] = ()
    """Sorted by name."""
    variant: str | None = None
    """None: the command line says it."""
    prompt: str | None = None
    """The prompt's text, or what stands for it; it is hashed and never kept."""
    prompt_token_ids: tuple[int, ...] | None = None
    """Exact, as sent to the engine."""
    external_id: str | None = None
    """The request's X-Request-Id as sent, or what a response's own id has in its place."""
    has_own_id: bool = False
    """Whether `id` may be the `kvtrace_id` that the client sent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table: an answer without its prompt."""

    id: str
    variant: str
    repetition: int
    task: str
    cluster: str | None
    outcome: Kind
    reason: str | None
    output_tokens: int | None
    tags: tuple[tuple[str, str], ...]
    prompt_digest: str | None
    """Keyed; equal where two answers are to the same prompt. None: the file has no prompt."""
    client_id: str | None
    """As in a trace under the same key; None: no key was given, or the id is the tool's."""
    prompt_hash: str | None
    """As in a trace under the same key; None: no key, or no exact token ids."""
    external_id: str | None = None
    """As in a trace under the same key; None: no key, or the file has no request id."""

    @property
    def pair_key(self) -> tuple[str, str, int]:
        """Return what pairs variants: task, id and repetition."""
        return (self.task, self.id, self.repetition)

    @property
    def passed(self) -> bool:
        """Return whether the answer was right."""
        return self.outcome == "pass"
