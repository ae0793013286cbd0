"""kvtrace: do the FP8 KV-cache scales still cover what the model now produces?

In a notebook: `kvtrace.open_trace`, `kvtrace.replay` and `kvtrace.open_run`, documented in `kvtrace.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.version import __version__

if TYPE_CHECKING:
    from kvtrace.api import open_run, open_trace, replay

__all__ = ["__version__", "open_run", "open_trace", "replay"]


def __getattr__(name: str) -> object:
    """Import a notebook's function when it is first used: the plug-in and the CLI start without them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvtrace import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
