"""What a rule says: a stable id, how bad it is, the numbers that settle it, and what to do."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(BaseModel):
    """One finding. `id` is the rule's file name with hyphens and stays the same between versions."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    id: str
    severity: Severity
    message: str
    """What is the case, in one sentence."""
    action: str
    """What to do about it."""
    layers: tuple[int, ...] = ()
    """Layers concerned; empty: the artifact as a whole."""
    evidence: dict[str, Any] = Field(default_factory=dict)
    """The numbers that settle it; names carry the unit."""
