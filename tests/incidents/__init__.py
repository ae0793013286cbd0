"""Planted incidents: faults put into real captured traces and real artifacts, and what the diagnosis says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from incidents.planting import Incident


def all_incidents() -> list[Incident]:
    """Return every planted case; importing a file of plants registers them."""
    from incidents import (
        artifact_plants,
        checkpoint_plants,
        combined_plants,
        healthy,
        note_plants,
        value_plants,
    )
    from incidents.planting import INCIDENTS

    assert all((artifact_plants, checkpoint_plants, combined_plants, healthy, note_plants, value_plants))
    return INCIDENTS
