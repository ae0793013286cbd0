"""One step of a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

Does = Literal[
    "look",  # shows what is wrong, and changes nothing
    "calibrate",  # makes new scales
    "serve",  # starts an engine, with capture on
    "report",  # says what changed
]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Those of a remedy are taken in their order."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    does: Does
    text: str
    """What it does or what it lacks, in a sentence."""
    command: str | None
    """To run as it stands; None: something is missing that `text` names."""
