"""A command starts numba anew each time, and does without what takes numba longest."""

from __future__ import annotations

import sys
from typing import Final

_ASKED_FOR: Final = "scipy.linalg.cython_blas"


def start_without_linear_algebra() -> None:
    """Start numba without scipy.linalg, which it would import to offer np.dot in kernels; ours call none.

    That takes 0.09 s of a command's 1.3. numba goes without where the import fails, so it is made to fail,
    once. For processes that run a command and end: in others, whoever compiles np.dot later would miss it.
    """
    if _ASKED_FOR in sys.modules:
        return
    sys.modules[_ASKED_FOR] = None  # type: ignore[assignment]
    try:
        import numba.np.arraymath  # noqa: F401 -- looks for it while it is imported
    finally:
        del sys.modules[_ASKED_FOR]
