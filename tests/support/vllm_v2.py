"""vLLM's V2 model runner on a CPU: Triton's kernels are interpreted."""

from __future__ import annotations

import os
from pathlib import Path

_INTERPRETER = Path(__file__).parents[1] / "vllm" / "v2" / "interpreter"


def v2_environment(*, asynchronous: bool = False) -> dict[str, str]:
    """Return what an engine's environment needs besides; asynchronous: its scheduler may be so if asked."""
    places = [str(_INTERPRETER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(places),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        **({"KVTRACE_TEST_ASYNC_SCHEDULING": "1"} if asynchronous else {}),
    }
