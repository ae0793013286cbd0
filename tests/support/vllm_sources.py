"""Looks names up in vLLM's unpacked sources. Nothing of them is imported or run."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Sources:
    """The folder `vllm` of a release, as text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: dict[str, ast.Module] = {}

    @cached_property
    def version(self) -> str:
        """Return the release's number, such as 0.33.0."""
        text = (self.folder / "_version.py").read_text()
        found = re.search(r"(?:__version__|version)[^'\"\n]*=[^'\"\n]*['\"]([0-9][^'\"]*)['\"]", text)
        if found is None:
            raise ValueError(f"{self.folder / '_version.py'} says no version")
        return found[1]

    def has(self, path: str) -> bool:
        """Return whether there is such a file."""
        return (self.folder / path).is_file()

    def module(self, path: str) -> ast.Module:
        """Return a file's syntax. Raises FileNotFoundError."""
        if path not in self._modules:
            self._modules[path] = ast.parse((self.folder / path).read_text())
        return self._modules[path]

    def defines(self, module: str, name: str) -> bool:
        """Return whether `vllm.a.b` is there and has a name, its own, imported or made when asked for."""
        path = self._path_of(module)
        if path is None:
            return False
        if not name:
            return True
        named = {
            found
            for node in ast.walk(self.module(path))
            for found in (
                *_bound_by(node),
                *([node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else ()),
            )
        }
        return name in named or self._path_of(f"{module}.{name}") is not None

    def definition(self, place: str) -> ast.AST | None:
        """Return what is at `path.py`, `path.py:name` or `path.py:Class.method`; None where it is not."""
        path, _, dotted = place.partition(":")
        if not self.has(path):
            return None
        node: ast.AST = self.module(path)
        for name in filter(None, dotted.split(".")):
            inner = [
                one
                for one in ast.walk(node)
                if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name
            ]
            if not inner:
                return None
            node = inner[0]
        return node

    def attributes(self, place: str) -> set[str]:
        """Return what a class and its bases have, or what a module has; empty where it is not there.

        A module's functions that fill a `layer` in count for its classes: so do vLLM's for their scales.
        """
        node = self.definition(place)
        if node is None:
            return set()
        path = place.partition(":")[0]
        found = {name for one in ast.walk(self.module(path)) for name in _set_on(one, ("layer",))}
        if isinstance(node, ast.Module):
            bound = {name for one in node.body for name in _bound_by(one)}
            texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            return bound | {text for text in texts if isinstance(text, str)}
        for one in ast.walk(node):
            found |= {*_set_on(one, ("self", "cls"))}
        assert isinstance(node, ast.ClassDef)
        for statement in node.body:
            found |= {*_bound_by(statement)}
        for base in node.bases:
            found |= self.attributes(self._place_of(path, _last_name(base)))
        return found

    def parameters(self, place: str) -> list[str] | None:
        """Return a function's parameters in order, without `self` and `cls`; None where it is not there."""
        node = self.definition(place)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        return parameters_of(node)

    def _path_of(self, module: str) -> str | None:
        path = "/".join(module.split(".")[1:])
        candidates = [f"{path}.py", f"{path}/__init__.py"] if path else ["__init__.py"]
        return next((one for one in candidates if self.has(one)), None)

    def _place_of(self, path: str, name: str) -> str:
        """Return where a class that a file uses is defined; a place that is not there if vLLM has it not."""
        for node in ast.walk(self.module(path)):
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
                found = self._path_of(node.module or "") if (node.module or "").startswith("vllm") else None
                if found is not None and found != path:
                    if self.definition(f"{found}:{name}") is not None:
                        return f"{found}:{name}"
                    return self._place_of(found, name)
        return f"{path}:{name}" if name and self.definition(f"{path}:{name}") is not None else ":"


def calls_in(node: ast.AST, name: str) -> list[ast.Call]:
    """Return the calls of anything whose last name is this one, such as `a.b.name(…)`."""
    return [one for one in ast.walk(node) if isinstance(one, ast.Call) and _last_name(one.func) == name]


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return a function's parameters in order, without `self` and `cls`; `*name` and `**name` too."""
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _set_on(node: ast.AST, names: tuple[str, ...]) -> list[str]:
    """Return the attribute that a node gives to one of the named objects, as a buffer of torch too."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr] if isinstance(node.value, ast.Name) and node.value.id in names else []
    if isinstance(node, ast.Call) and _last_name(node.func) == "register_buffer" and node.args:
        first = node.args[0]
        return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
    return []


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.id if isinstance(node, ast.Name) else ""
