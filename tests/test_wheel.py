"""The wheel as others install it: alone in an empty environment, and over the analysis packages."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "samples/smollm2-135m.kvtrace"


def run(*command: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **kwargs
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, and nothing else; returns its bin directory."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    installed = run(sys.executable, "-m", "pip", "--python", home, "install", "--quiet", wheel)
    assert installed.returncode == 0, installed.stderr
    return home / "bin"


def test_the_bare_install_brings_no_analysis_package(bare: Path) -> None:
    code = "from importlib.metadata import distributions as d; print(*(x.name.lower() for x in d()))"
    names = run(bare / "python", "-c", code).stdout.split()
    assert "kvtrace" in names
    assert not {"torch", "duckdb", "polars", "pyarrow", "pandas"} & set(names)


def test_help_works_on_the_bare_install(bare: Path) -> None:
    assert "kvtrace" in run(bare / "kvtrace", "--help").stdout


@pytest.mark.parametrize("command", [("report", SAMPLE), ("replay", SAMPLE, "-o", "r"), ("query", "--list")])
def test_a_command_that_lacks_its_extra_says_which(bare: Path, command: tuple[object, ...]) -> None:
    result = run(bare / "kvtrace", *command)
    assert result.returncode == 2
    assert "pip install 'kvtrace[analysis]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_inspect_works_on_the_bare_install(bare: Path) -> None:
    result = run(bare / "kvtrace", "inspect", SAMPLE)
    assert result.returncode == 0, result.stderr
    assert "SmolLM2" in result.stdout


def test_capture_is_planned_on_the_bare_install(bare: Path) -> None:
    sizes = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128")
    assert "131,072 bytes" in run(bare / "kvtrace", "capture", "plan", *sizes).stdout
    assert "vllm serve m" in run(bare / "kvtrace", "capture", "flags", "--model", "m", "-o", "traces").stdout


def test_what_runs_inside_an_engine_is_imported_without_torch_or_vllm_where_it_needs_none(bare: Path) -> None:
    code = (
        "import sys\n"
        "from kvtrace_capture import journal, plugin, privacy, request_log, sampling_switch, writer\n"
        "plugin.register()\n"
        "print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    result = run(bare / "python", "-c", code)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def test_capturing_offline_on_the_bare_install_says_that_vllm_is_missing(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "workload": "chat"}\n')
    command = ("capture", "run", "--model", "m", "--prompts", "prompts.jsonl", "-o", "a.kvtrace")
    result = run(bare / "kvtrace", *command, cwd=tmp_path)
    assert result.returncode == 2
    assert (
        "this Python has no vllm; name the Python of vLLM's environment with --vllm-python" in result.stderr
    )
    assert not (tmp_path / "a.kvtrace").exists()


def test_the_plug_in_is_found_by_its_entry_point(bare: Path) -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "print(entry_points(group='vllm.general_plugins')['kvtrace'].value)"
    )
    assert run(bare / "python", "-c", code).stdout.strip() == "kvtrace_capture.plugin:register"


def test_the_report_finds_its_queries_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    installed = run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    assert installed.returncode == 0, installed.stderr
    environment = os.environ | {"PYTHONPATH": str(target)}  # goes before the editable install
    located = run(
        sys.executable, "-c", "import kvtrace; print(kvtrace.__file__)", env=environment, cwd=tmp_path
    )
    assert located.stdout.startswith(str(target))
    result = run(sys.executable, "-m", "kvtrace", "report", SAMPLE, env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "SmolLM2" in result.stdout
