"""Names and limits that the plug-in inside vLLM and `kvtrace capture` outside must agree on.

Nothing is imported: every process of the serving engine loads this module.
"""

from __future__ import annotations

from typing import Final

CONNECTOR: Final = "KVTraceConnector"
"""What `--kv-transfer-config` calls the plug-in."""
CONNECTOR_MODULE: Final = "kvtrace_capture.connector"
CONTROL_FILE: Final = "kvtrace-control.json"
"""Beside the traces: it switches capture while the engine runs."""
KEY_FILE: Final = "kvtrace.key"
"""Beside the traces: the key of all hashes in them."""
TRACE_FILE: Final = "trace.json"
WORKLOAD_KEY: Final = "kvtrace_workload"
CLIENT_ID_KEY: Final = "kvtrace_id"
"""Of a request's extra arguments."""
MAX_LABEL_CHARS: Final = 64
MAX_CLIENT_ID_CHARS: Final = 256
"""The plug-in cuts what is longer."""
DEFAULT_POSITION_STRIDE: Final = 16
