"""`import kvtrace` is what a notebook needs; what it returns is tested by the examples in kvtrace/api.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kvtrace
import kvtrace.api


@pytest.mark.parametrize("name", ["open_trace", "open_run", "replay"])
def test_the_notebook_functions_are_attributes_of_the_package(name: str) -> None:
    assert getattr(kvtrace, name) is getattr(kvtrace.api, name)
    assert name in dir(kvtrace)


def test_replay_stays_the_function_whatever_was_imported_before() -> None:
    code = (
        "import kvtrace.cli, kvtrace.commands.replay, kvtrace.evaluation, kvtrace.evaluation.replay\n"
        "import kvtrace, kvtrace.api\n"
        "assert kvtrace.replay is kvtrace.api.replay"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys\nimport kvtrace\nprint(*(n for n in sys.modules if n.startswith('kvtrace')))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout.split() == ["kvtrace"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kvtrace' has no attribute 'replays'"):
        kvtrace.replays  # noqa: B018
