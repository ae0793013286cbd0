"""The entry point that vLLM loads in every process, and that does nothing unless it is asked to.

With `KVTRACE_CAPTURE=1` it makes the connector known by its name, so that `--kv-transfer-config` needs no
`kv_connector_module_path`. Capture itself starts only where that configuration names `KVTraceConnector`.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

SWITCH: Final = "KVTRACE_CAPTURE"
FACTORY: Final = "vllm.distributed.kv_transfer.kv_connector.factory"


def register() -> None:
    """Add `KVTraceConnector` to vLLM's connector names if `KVTRACE_CAPTURE=1`; safe to call again."""
    if os.environ.get(SWITCH) != "1":
        return
    from kvtrace.trace.capture_names import CONNECTOR, CONNECTOR_MODULE

    factory = importlib.import_module(FACTORY).KVConnectorFactory
    if CONNECTOR not in factory._registry:
        factory.register_connector(CONNECTOR, CONNECTOR_MODULE, CONNECTOR)
