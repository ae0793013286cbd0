"""Options of every command that configures a capture: the plug-in's keys by their own names."""

from __future__ import annotations

from enum import StrEnum
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
    typer.Option("--byte-budget", help="Of K, V and Q on each rank, such as 20GB; what is more is dropped."),
]


class Queries(StrEnum):
    """Which queries are captured too."""

    NONE = "none"
    STORED = "stored"
    PROBE = "probe"


QUERIES = Annotated[
    Queries,
    typer.Option(
        "--queries",
        help="Q too. stored: at every 4th sampled position. probe: at some positions of a few requests, of "
        "which K and V of all positions are kept.",
    ),
]
PROBE_REQUESTS = Annotated[
    int | None, typer.Option("--probe-requests", min=1, help="Of each workload, with --queries probe: 8.")
]
PROBE_POSITIONS = Annotated[
    int | None,
    typer.Option("--probe-positions", min=1, max=1024, help="Of each of them, at most: 8."),
]
