"""The entry point, in an interpreter of its own: what it imports and does when nobody asked for capture."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

SHOW = (
    "import sys; from kvtrace_capture.plugin import register; register(); register();"
    "print(sorted(m for m in sys.modules if m.startswith(('kvtrace', 'vllm', 'torch', 'numpy'))))"
)


def test_the_entry_point_is_declared_for_vllm() -> None:
    (point,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="kvtrace")
    assert point.value == "kvtrace_capture.plugin:register"


def test_without_its_switch_it_imports_nothing_but_itself() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KVTRACE_CAPTURE"}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "['kvtrace_capture', 'kvtrace_capture.plugin']"
