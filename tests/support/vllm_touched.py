"""Which names of vLLM the plug-in touches, read from its sources: imports, and attributes of vLLM's objects.

vLLM's objects come to the plug-in as `Any`, `dict[str, Any]` and the like: parameters of functions, results
of its own, what an object keeps of its parameters, and what the connector's base class keeps. Whatever is
taken of such an object is one too: an attribute, an element, an entry of a dict.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KEPT_BY_THE_BASE: Final = ("_vllm_config", "_kv_cache_config")
_ASKED_BY_NAME: Final = ("getattr", "hasattr", "setattr")
_MIXED_INTO_WORKER: Final = ("WatchResidual", "TellAttention")
"""Classes whose `self` is vLLM's worker."""
_PASSED_ON: Final = (
    "zip",
    "enumerate",
    "next",
    "iter",
    "list",
    "tuple",
    "sorted",
    "min",
    "max",
    "type",
    "vars",
)
"""What Python's own functions return holds what they were given."""


def imported_names(source: Path) -> set[str]:
    """Return `module:name` of everything that a module imports from vllm, `module:` for the module itself."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and _is_vllm(node.module):
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"{alias.name}:" for alias in node.names if _is_vllm(alias.name)}
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("vllm.")
        ):
            found.add(f"{node.value}:")
    return found


def touched_names(source: Path) -> set[str]:
    """Return every attribute that a module takes of an object that may be vLLM's."""
    module = ast.parse(source.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if (isinstance(node, ast.ImportFrom) and _is_vllm(node.module)) or isinstance(node, ast.Import)
        for alias in node.names
        if isinstance(node, ast.ImportFrom) or _is_vllm(alias.name)
    }
    imported |= {
        one.name for one in module.body if isinstance(one, ast.FunctionDef) and _holds_any(one.returns)
    }
    kept = {*_KEPT_BY_THE_BASE, *_kept_parameters(module)}
    found: set[str] = set()
    for node in module.body:
        is_worker = isinstance(node, ast.ClassDef) and node.name in _MIXED_INTO_WORKER
        for function in _functions(node):
            found |= _Touched({*imported, *(("self",) if is_worker else ())}, kept).of(function)
    return found


def settings_asked(source: Path) -> dict[str, tuple[str, ...]]:
    """Return the constants of a module that hold names of attributes: NAME or section → names.

    Only these are asked for by a variable: a tuple of names, or a dict of sections to such.
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            if isinstance(value, dict) and all(isinstance(names, tuple) for names in value.values()):
                found |= value
            elif isinstance(value, tuple) and all(isinstance(name, str) for name in value):
                found[node.target.id] = value
    return found


class _Touched:
    """Follows vLLM's objects through one function and those inside it."""

    def __init__(self, known: set[str], kept: set[str]) -> None:
        self._known = set(known)
        self._kept = kept
        self._found: set[str] = set()

    def of(self, function: ast.AST) -> set[str]:
        size = -1
        while size != len(self._known):  # until nothing more is found to be vLLM's
            size = len(self._known)
            for node in ast.walk(function):
                self._learn(node)
        for node in ast.walk(function):
            self._note(node)
        return self._found

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.arg) and _holds_any(node.annotation):
            self._known.add(node.arg)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.NamedExpr):
            self._assign(node.target, node.value)
        elif isinstance(node, ast.For | ast.comprehension):
            self._assign(node.target, node.iter)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):  # a, b = c, d
            for inner, given in zip(target.elts, value.elts, strict=True):
                self._assign(inner, given)
        elif self._is_vllms(value):
            self._learn_target(target)

    def _learn_target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._known.add(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            for inner in target.elts:
                self._learn_target(inner)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) and self._is_vllms(node.value):
            self._found.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            asked = node.args[1]
            is_named = isinstance(asked, ast.Constant) and isinstance(asked.value, str)
            if node.func.id in _ASKED_BY_NAME and is_named and self._is_vllms(node.args[0]):
                self._found.add(asked.value)

    def _is_vllms(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._known
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            return (is_own and node.attr in self._kept) or self._is_vllms(node.value)
        if isinstance(node, ast.Subscript | ast.Starred):
            return self._is_vllms(node.value)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in (*_ASKED_BY_NAME, *_PASSED_ON):
                return any(self._is_vllms(argument) for argument in node.args)
            return self._is_vllms(node.func)
        if isinstance(node, ast.BoolOp):
            return any(self._is_vllms(value) for value in node.values)
        if isinstance(node, ast.IfExp):
            return self._is_vllms(node.body) or self._is_vllms(node.orelse)
        if isinstance(node, ast.Tuple | ast.List):
            return any(self._is_vllms(value) for value in node.elts)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            return self._is_vllms(node.elt)
        if isinstance(node, ast.DictComp):
            return self._is_vllms(node.value)
        return False


def _functions(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from _functions(inner)
    elif isinstance(node, ast.FunctionDef):
        yield node


def _kept_parameters(module: ast.Module) -> Iterator[str]:
    """Yield the attributes of `self` that are given a parameter which may be vLLM's."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            given = {one.arg for one in function.args.args if _holds_any(one.annotation)}
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Assign)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in given
                ):
                    yield from (target.attr for target in node.targets if isinstance(target, ast.Attribute))


def _holds_any(annotation: ast.expr | None) -> bool:
    """Return whether a type is Any, or a container of it; what is called with it is not."""
    if annotation is None or "Callable" in ast.unparse(annotation):
        return False
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))


def _is_vllm(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "vllm"
