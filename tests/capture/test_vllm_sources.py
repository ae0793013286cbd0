"""vLLM's sources have what the plug-in relies on, read and never imported: VLLM_SOURCES=FOLDER[:FOLDER…].

A folder is an unpacked release's `vllm`. `make test-vllm-sources` unpacks 0.33 and asks this of it and of
the release that is installed. That a name is there is no proof that capture works: nothing is run here.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import kvtrace_capture
import pytest
from support.vllm_names import IMPORTED, OWNERS
from support.vllm_sources import Sources, calls_in, parameters_of
from support.vllm_ways import (
    BASES,
    CALLS,
    FUNCTIONS,
    OWN_METHODS,
    SINCE,
    UPDATE,
    WRITING_BACKENDS,
    Calls,
    Function,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS = [folder for folder in os.environ.get("VLLM_SOURCES", "").split(":") if folder]
CONNECTOR = Path(kvtrace_capture.__path__[0]) / "connector.py"


@cache
def sources_of(folder: str) -> Sources:
    return Sources(Path(folder))


@pytest.fixture(
    params=FOLDERS or [pytest.param("", marks=pytest.mark.skip(reason="VLLM_SOURCES is not set"))]
)
def sources(request: pytest.FixtureRequest) -> Sources:
    return sources_of(request.param)


def is_since(release: str, version: str) -> bool:
    one, other = (tuple(int(part) for part in text.split(".")[:2]) for text in (release, version))
    return one <= other


def test_what_the_plug_in_imports_is_there(sources: Sources) -> None:
    assert [name for name in IMPORTED if not sources.defines(*name.split(":"))] == []


def test_what_the_plug_in_takes_of_vllms_objects_is_there(sources: Sources) -> None:
    absent = {}
    for name, owner in OWNERS.items():
        known = {place: sources.attributes(place) for place in owner.places}
        expected = {one for one in owner.attributes if is_since(owner.since.get(one, "0"), sources.version)}
        absent[name] = {place: expected - found for place, found in known.items() if expected - found}
    assert {name: found for name, found in absent.items() if found} == {}


def test_a_name_that_is_gone_and_an_argument_that_is_new_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "vllm"
    (folder / "v1").mkdir(parents=True)
    (folder / "_version.py").write_text("__version__ = version = '0.34.1'\n")
    (folder / "__init__.py").write_text("LAZY = {'LLM': '.llm:LLM'}\n")
    (folder / "v1" / "base.py").write_text(
        "class Base:\n    kept: int\n    def __init__(self): self.made = 1\n"
    )
    (folder / "v1" / "layer.py").write_text(
        "from vllm.v1.base import Base\n"
        "class Layer(Base):\n"
        "    def write(self, key, *, skip=False): self.impl.store(key, at=1)\n"
        "def fill(layer): layer._scale = 1.0\n"
    )
    sources = Sources(folder)
    assert sources.version == "0.34.1"
    assert sources.defines("vllm", "LLM")
    assert not sources.defines("vllm", "SamplingParams")
    assert not sources.defines("vllm.v1.gone", "")
    assert sources.attributes("v1/layer.py:Layer") == {"kept", "__init__", "made", "write", "_scale"}
    assert sources.parameters("v1/layer.py:Layer.write") == ["key", "skip"]
    assert sources.parameters("v1/layer.py:Layer.read") is None
    write = sources.definition("v1/layer.py:Layer.write")
    assert write is not None
    assert [(len(call.args), call.keywords[0].arg) for call in calls_in(write, "store")] == [(1, "at")]


def overridden() -> Iterator[ast.FunctionDef]:
    """Yield the public methods of the plug-in's connector."""
    for node in ast.parse(CONNECTOR.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "KVTraceConnector":
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    yield method


def test_the_connector_overrides_methods_that_its_bases_have_with_their_arguments(sources: Sources) -> None:
    for method in overridden():
        in_bases = [
            found for base in BASES if (found := sources.parameters(f"{base}.{method.name}")) is not None
        ]
        if method.name in OWN_METHODS:
            assert in_bases == []
        else:
            assert parameters_of(method) in in_bases, method.name


def test_what_the_plug_in_does_not_override_of_its_bases_is_not_abstract(sources: Sources) -> None:
    own = {method.name for method in overridden()}
    for base in BASES:
        found = sources.definition(base)
        assert found is not None
        abstract = {
            one.name
            for one in ast.walk(found)
            if isinstance(one, ast.FunctionDef) and "abstractmethod" in map(ast.unparse, one.decorator_list)
        }
        assert abstract <= own


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.places[0].rpartition(":")[2])
def test_a_function_takes_what_it_is_known_to_take(sources: Sources, function: Function) -> None:
    found = [sources.parameters(place) for place in function.places]
    assert list(function.parameters) in found


@pytest.mark.parametrize("backend", WRITING_BACKENDS)
def test_a_backend_writes_its_cache_with_the_arguments_of_the_hook(sources: Sources, backend: str) -> None:
    assert sources.parameters(f"v1/attention/backends/{backend}.do_kv_cache_update") == list(UPDATE)


def ways() -> list[tuple[str, Calls]]:
    return [("0", way) for way in CALLS] + [(release, way) for release in SINCE for way in SINCE[release]]


@pytest.mark.parametrize(("release", "way"), ways(), ids=lambda one: getattr(one, "called", ""))
def test_vllm_calls_what_is_hooked_as_it_is_known_to(sources: Sources, release: str, way: Calls) -> None:
    if not is_since(release, sources.version):
        pytest.skip(f"since {release}")
    node = sources.definition(way.place)
    assert node is not None, way.place
    found = [
        (len(call.args), tuple(keyword.arg for keyword in call.keywords))
        for call in calls_in(node, way.called)
    ]
    assert (way.positional, way.named) in found, way.place


def test_the_hooked_operator_is_called_in_both_ways_of_a_layer(sources: Sources) -> None:
    forward = sources.definition("model_executor/layers/attention/attention.py:Attention.forward")
    assert forward is not None
    called = {ast.unparse(call.func) for call in calls_in(forward, "unified_kv_cache_update")}
    assert called == {"unified_kv_cache_update", "torch.ops.vllm.unified_kv_cache_update"}
