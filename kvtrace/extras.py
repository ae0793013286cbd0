"""Say which extra a command lacks, instead of an ImportError."""

from __future__ import annotations

from importlib.util import find_spec

from kvtrace.errors import MissingExtraError


def require_extra(extra: str, command: str, *modules: str) -> None:
    """Raise MissingExtraError unless every module can be imported.

    extra: the extra of `pyproject.toml` that brings them. command: as the user typed it.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"kvtrace {command} needs {', '.join(missing)}, which this install lacks: "
            f"pip install 'kvtrace[{extra}]'"
        )
