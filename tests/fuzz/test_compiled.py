"""That the fuzzers' arrays come to every compiled entry point, each of which says what it takes."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numba
import pytest
from faults.scratch import scratch

import kvtrace
from fuzz.__main__ import one_case
from fuzz.bases import Bases
from kvtrace.formats.compiled import steps, totals
from kvtrace.formats.compiled.kernel import Kernel
from kvtrace.numerics import compiled, counted, limits
from kvtrace.profile import cpu_kernel, prefetch

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRIES: Final = {
    cpu_kernel.count_magnitudes: ("tensors", "rows"),
    counted.counted_errors: ("arrays of a profile", "values of scales"),
    counted.segment_sums: ("arrays of a profile",),
    limits.max_in_range_code: ("values of scales",),
    limits.max_unclipped_code: ("values of scales",),
    totals.add_errors: ("tensors under formats",),
    Kernel.fill: ("tensors under formats",),
}
"""Python functions that hand arrays over to compiled code, and the fuzzers that reach them."""
CALLED_BY_COMPILED_CODE: Final = (compiled, prefetch, steps)
"""Modules of functions that compiled code alone calls."""
KERNELS: Final = "kvtrace.formats.compiled."
"""Modules whose compiled functions `Kernel.fill` alone calls."""


@pytest.fixture(scope="module")
def bases() -> Iterator[Bases]:
    with scratch() as folder:
        yield Bases(folder)


def test_every_module_with_compiled_code_has_an_entry_here() -> None:
    names = [module.name for module in pkgutil.walk_packages(kvtrace.__path__, "kvtrace.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    with_own = {
        module
        for module in modules
        for value in vars(module).values()
        if isinstance(value, numba.core.dispatcher.Dispatcher) and value.__module__ == module.__name__
    }
    known = {sys.modules[entry.__module__] for entry in ENTRIES} | set(CALLED_BY_COMPILED_CODE)
    others = {module.__name__ for module in with_own - known}
    assert all(name.startswith(KERNELS) for name in others)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_the_fuzzers_of_arrays_reach_it(bases: Bases, entry: Any) -> None:
    with spied(entry) as calls:
        for kind in ENTRIES[entry]:
            calls.clear()
            for seed in range(8):
                one_case(bases, bases.trace.parent.parent, kind, f"entry:{seed}")
                if calls:
                    break
            assert calls, f"no case of {kind} came to {entry.__name__}"


@contextmanager
def spied(entry: Any) -> Iterator[list[str]]:
    """Note calls of a function under every name that a module of kvtrace has for it."""
    calls: list[str] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(entry.__name__)
        return entry(*arguments, **options)

    owners = [module for name, module in sys.modules.items() if name.startswith("kvtrace.")]
    with ExitStack() as stack:
        for owner in (*owners, Kernel):
            for name in [name for name, value in vars(owner).items() if value is entry]:
                stack.enter_context(patch.object(owner, name, noted))
        yield calls
