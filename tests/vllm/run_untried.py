"""`run_offline.py` as if this vLLM had never been tried.

Only the table of tried versions is emptied, and with KVTRACE_SILENT_LAYER the hook of one layer left out:
what follows is the plug-in's own doing. The engine must run in this process (ONE_PROCESS).
"""

from __future__ import annotations

import os
import sys
from typing import Any

import kvtrace_capture.connector as plug_in
import run_offline
from kvtrace_capture.vllm_versions import TRIED


def main(job_file: str) -> None:
    TRIED.clear()
    silent, wrap = os.environ.get("KVTRACE_SILENT_LAYER"), plug_in.wrap_cache_write

    def wrap_others(module: Any, recorder: Any) -> None:
        if module.layer_name != silent:
            wrap(module, recorder)

    plug_in.wrap_cache_write = wrap_others
    run_offline.main(job_file)


if __name__ == "__main__":
    main(sys.argv[1])
