"""What pytest must not import while it looks for doctests: scripts of the vLLM environment.

And a key of the tests' own, so that no test seals counts with the user's.
"""

import os
from pathlib import Path

collect_ignore_glob = [
    "incidents/make_*.py",
    "vllm/run_*.py",
    "vllm/write_*.py",
    "vllm/make_env.py",
    "vllm/v2/interpreter/*",
    "faults/*_connector.py",
]

_KEY = Path(__file__).parents[1] / ".cache/tests.key"
_KEY.parent.mkdir(exist_ok=True)
os.environ.setdefault("KVTRACE_KEY_FILE", str(_KEY))
