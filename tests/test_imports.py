"""The directions in which parts may import each other, read from the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "byte_text": set(),
    "files": set(),
    "plain_text": set(),
    "policy_file": {"errors", "files", "plain_text"},
    "not_visible": set(),
    "figures": set(),
    "extras": {"errors"},
    "sample_size": set(),
    "signals": set(),
    "capture": {"byte_text", "errors", "files", "plain_text", "sample_size", "trace", "version"},
    "trace": {"byte_text", "errors", "figures", "files", "plain_text", "version"},
    "numerics": {"errors", "trace"},
    "formats": {"errors", "numerics"},
    "capacity": {"errors", "figures", "files", "formats", "plain_text", "trace"},
    "runs": {"errors", "files", "plain_text", "trace"},
    "profile": {"errors", "files", "trace", "numerics", "version"},
    "scales": {"errors", "files", "plain_text", "trace", "numerics"},
    "calibration": {
        "version",
        "errors",
        "figures",
        "files",
        "plain_text",
        "trace",
        "numerics",
        "profile",
        "scales",
    },
    "candidates": {"errors", "plain_text", "trace", "numerics", "formats", "scales", "findings"},
    "attention": {"errors", "files", "trace", "numerics", "formats", "scales", "candidates"},
    "evaluation": {
        "attention",
        "version",
        "errors",
        "files",
        "plain_text",
        "runs",
        "profile",
        "numerics",
        "formats",
        "scales",
        "calibration",
        "candidates",
        "findings",
        "trace",
    },
    "remedies": {"calibration", "capture", "numerics", "plain_text", "scales", "trace"},
    "query": {"errors", "plain_text", "runs"},
    "stats": {"errors", "runs"},
    "outcomes": {"errors", "figures", "files", "plain_text", "trace", "version"},
    "fixture": {"errors", "files", "outcomes"},
    "quality": {
        "calibration",
        "capture",
        "errors",
        "figures",
        "files",
        "fixture",
        "outcomes",
        "plain_text",
        "policy_file",
        "query",
        "runs",
        "sample_size",
        "stats",
        "trace",
        "version",
    },
    "serving": {
        "capacity",
        "errors",
        "figures",
        "files",
        "outcomes",
        "plain_text",
        "policy_file",
        "runs",
        "version",
    },
    "gate": {
        "errors",
        "files",
        "figures",
        "not_visible",
        "plain_text",
        "policy_file",
        "sample_size",
        "quality",
        "serving",
        "query",
        "stats",
        "runs",
        "findings",
    },
    "decide": {
        "capacity",
        "errors",
        "figures",
        "files",
        "gate",
        "outcomes",
        "plain_text",
        "quality",
        "report",
        "runs",
        "serving",
        "version",
    },
    "findings": {
        "remedies",
        "figures",
        "formats",
        "not_visible",
        "errors",
        "files",
        "plain_text",
        "trace",
        "numerics",
        "profile",
        "scales",
        "calibration",
        "query",
        "stats",
        "runs",
    },
    "report": {
        "errors",
        "figures",
        "files",
        "not_visible",
        "plain_text",
        "findings",
        "formats",
        "gate",
        "query",
        "remedies",
        "stats",
        "runs",
        "trace",
    },
    "mend": {"calibration", "findings", "remedies", "report", "runs", "trace", "version"},
    "report/scales": {"errors", "figures", "plain_text", "findings", "numerics", "report", "scales", "trace"},
}
"""Part of kvtrace → the other parts it may import. `commands`, `cli`, `api`, `schemas` and `reference` may
import everything."""

CAPTURE_MAY_IMPORT = {
    *(f"kvtrace.files.{name}" for name in ("replaced", "key_file")),
    *(
        f"kvtrace.trace.{name}"
        for name in (
            "format",
            "attention_format",
            "chunks",
            "fingerprint",
            "lines",
            "capture_names",
            "request_ids",
        )
    ),
}
CAPTURE_MAY_IMPORT_VLLM = {
    "answers.py",
    "connector.py",
    "hooks.py",
    "obstacles.py",
    "offline.py",
    "residual.py",
}


def imported_modules(path: Path) -> set[str]:
    """Return the dotted names of all modules that a file imports, type-checking imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources("kvtrace"), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_part_imports_only_what_lies_below_it(path: Path) -> None:
    parts = path.relative_to(ROOT / "kvtrace").parts
    part = parts[0].removesuffix(".py")
    if part in {"commands", "cli", "api", "schemas", "reference", "__init__", "__main__"}:
        return
    imported = {name.split(".")[1] for name in imported_modules(path) if name.startswith("kvtrace.")}
    beyond = {name for name in imported if name in MAY_IMPORT} | (
        imported & {"commands", "cli", "api", "schemas", "reference"}
    )
    assert beyond - {part} <= MAY_IMPORT.get("/".join(parts[:2]), MAY_IMPORT[part])


@pytest.mark.parametrize("path", sources("kvtrace"), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_part_imports_the_packages_front(path: Path) -> None:
    part = path.relative_to(ROOT / "kvtrace").parts[0].removesuffix(".py")
    if part not in {"commands", "cli", "api", "__init__", "__main__"}:
        assert "kvtrace" not in imported_modules(path)


def test_no_parts_import_each_other_in_a_circle() -> None:
    below = {part: set(parts) for part, parts in MAY_IMPORT.items()}
    while settled := {part for part, parts in below.items() if not parts}:
        below = {part: parts - settled for part, parts in below.items() if part not in settled}
    assert not below


def test_the_architecture_page_has_these_parts_and_directions() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_/]+)` \| .+ \| (.*) \|$", page, re.MULTILINE)
    assert {part: set(re.findall(r"`([a-z_/]+)`", parts)) for part, parts in rows} == MAY_IMPORT


@pytest.mark.parametrize("path", sources("kvtrace"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_analyzer_imports_neither_vllm_nor_the_plug_in(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported_modules(path)} & {"vllm", "kvtrace_capture"}


@pytest.mark.parametrize("path", sources("capture/kvtrace_capture"), ids=lambda path: path.name)
def test_the_plug_in_imports_of_kvtrace_only_the_format(path: Path) -> None:
    modules = {name for name in imported_modules(path) if name.split(".")[0] == "kvtrace"}
    assert all(any(name == ok or name.startswith(ok + ".") for ok in CAPTURE_MAY_IMPORT) for name in modules)


@pytest.mark.parametrize("path", sources("capture/kvtrace_capture"), ids=lambda path: path.name)
def test_vllm_is_imported_where_it_must_be_alone(path: Path) -> None:
    imports_vllm = any(name.split(".")[0] == "vllm" for name in imported_modules(path))
    assert not imports_vllm or path.name in CAPTURE_MAY_IMPORT_VLLM


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("kvtrace.cli", {"torch", "duckdb", "polars", "pyarrow", "numpy", "zarr", "pydantic"}),
        ("kvtrace.query, kvtrace.report, kvtrace.runs.open", {"torch"}),
        ("kvtrace.evaluation", {"duckdb"}),
        ("kvtrace.trace.reader, kvtrace.trace.summary", {"torch", "duckdb", "polars", "pyarrow"}),
    ],
)
def test_heavy_packages_load_only_where_they_are_needed(modules: str, unwanted: set[str]) -> None:
    code = f"import sys\nimport {modules}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not unwanted & set(loaded.stdout.split())
