"""Options of every command that configures a capture: the plug-in's keys by their own names."""

from __future__ import annotations

from typing import Annotated

import typer

POSITION_STRIDE = Annotated[
    int, typer.Option("--position-stride", min=1, help="Sample 1 in this many positions of a request.")
]
REQUEST_FRACTION = Annotated[
    float,
    typer.Option("--request-fraction", min=0.0, max=1.0, help="Share of requests that are sampled, above 0."),
]
LAYERS = Annotated[str | None, typer.Option("--layers", help="Only these layers, such as 0,1,29.")]
BYTE_BUDGET = Annotated[
    str | None,
    typer.Option("--byte-budget", help="Of K and V on each rank, such as 20GB; what is more is dropped."),
]
