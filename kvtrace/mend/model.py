"""What `kvtrace mend` did and what is left to do: the JSON of `kvtrace mend --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from kvtrace.remedies.step import Step  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.report.answer.model import State  # noqa: TC001 -- pydantic reads the annotations

MEND_SCHEMA_VERSION: Final = "1.0"
_DOCUMENTED: Final = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Audited:
    """What the trace says of the scales that ran."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    command: str
    """Shows all of it."""
    state: State
    headline: str
    finding: str | None
    """Id of the finding that leads; None: none does."""
    action: str
    """What it calls for, in words; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Written:
    """The new checkpoint."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    command: str
    """The command that did the same."""
    path: str
    granularity: Literal["tensor", "attn_head"]
    headroom: float
    num_scales: int
    """Values, over layers, K and V."""
    num_linked: int
    """Files that are symbolic links to the original checkpoint's."""
    copied: tuple[str, ...]
    """Weight files that were copied, to leave older scales out of them."""
    warning: str | None
    """Why these scales may fall short; None: nothing says so."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done, in order, and what is left to do."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    schema_version: str
    kvtrace_version: str
    trace: str
    audited: Audited
    written: Written | None
    """None: new scales mend nothing here, so nothing was written."""
    next: tuple[Step, ...]
    """Empty where nothing was written."""
