"""A part of what a comparison says."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Read only."""

    model_config = ConfigDict(frozen=True)
